"""Rules of tasks: the ids of jobs, and when schedules come due."""
