"""The application: which routes there are, what callers may see, and how answers look."""
