"""The broker's verbs over storage: push, pop, ack, transaction, fetch."""
