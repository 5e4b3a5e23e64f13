"""Reading queues and windows into Spark."""
