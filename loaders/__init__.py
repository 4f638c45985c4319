"""parbake's training side."""
