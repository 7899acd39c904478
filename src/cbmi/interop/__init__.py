"""Public corpora by name."""
