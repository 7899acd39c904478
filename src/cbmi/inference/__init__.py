"""A trained run: translate, score, weights; what `cbmi.load` returns."""
