"""The spool of a server: QoS 0, outages, and what is drained from it."""
