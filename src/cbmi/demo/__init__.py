"""The built-in corpus and the demo."""
