"""Messages that wait in files: because they asked to, or because the database is away."""
