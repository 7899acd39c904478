"""Corpora in, models out: public corpora by name, and what other programs load."""
