"""Tasks: jobs, keys, schedules and workers."""
