"""Text to pieces to memory-mapped ids to batches; the built-in demo corpus."""
