"""Routes of the published streaming SDK."""
