"""Jobs and schedules."""
