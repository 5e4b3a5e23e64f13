"""Transactions: acks and pushes committed together, and what a repeated one must not do again."""
