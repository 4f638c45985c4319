"""Every URL is fsspec: open, list, ranged read, publish atomically."""
