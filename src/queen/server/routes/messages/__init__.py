"""Routes of messages: push, pop, ack, transactions, reading."""
