"""What is there before Spark runs: Java, a session, Python processes."""
