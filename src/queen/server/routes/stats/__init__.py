"""Routes of numbers: status, analytics, metrics, resources."""
