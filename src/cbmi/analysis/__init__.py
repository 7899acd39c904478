"""Token and sentence CBMI, heat maps."""
