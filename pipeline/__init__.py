"""parbake's offline side."""
