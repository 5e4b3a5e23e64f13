"""Commands of those who look after brokers: status, doctor, switches, tokens, contexts."""
