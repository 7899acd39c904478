"""Text → vocabulary → ids on disk, and what is computed from them once: statistics, weights."""
