"""What is in `deploy/`: parsed, rendered, linted, and run as far as a test can."""
