"""Routes of operators: queues, tokens, maintenance, health."""
