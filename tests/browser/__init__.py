"""The dashboard in a real browser, against a real server with data."""
