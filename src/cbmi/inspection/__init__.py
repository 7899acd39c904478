"""Heat maps, figures and prior accuracy: what a translation owes to its source."""
