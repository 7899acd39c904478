"""What pages, figures and tables of all rooms share."""
