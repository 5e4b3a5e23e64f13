"""Windows in Spark: by event time, and leased."""
