"""Other people's formats: corpora in, models out."""
