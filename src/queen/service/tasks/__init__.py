"""Tasks: what became of jobs, keys that one job at a time may have, and schedules."""
