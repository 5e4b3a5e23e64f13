"""Streams for clients of Redis: RESP2 and RESP3 on a port of their own."""
