"""Other people's corpora."""
