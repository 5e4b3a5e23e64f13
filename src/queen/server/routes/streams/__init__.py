"""Routes of streams and their windows."""
