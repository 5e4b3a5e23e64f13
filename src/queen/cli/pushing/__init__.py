"""From what a user has to messages in a queue."""
