"""The command line; the composition root lives here."""
