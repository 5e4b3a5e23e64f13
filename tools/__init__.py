"""Programs for those who work on Queen itself."""
