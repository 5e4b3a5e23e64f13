"""`queen worker`: running the tasks of an application."""
