"""Routes of streams with the verbs of Redis."""
