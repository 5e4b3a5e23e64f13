"""The spool of a client: pushes that no broker could take, on the disk until one can."""
