"""Writing from Spark into queues."""
