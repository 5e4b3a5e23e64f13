"""Routes by resource; each module has a function that lists its own."""
