"""Rules and scores that split a parallel corpus, and the page to choose a threshold by."""
