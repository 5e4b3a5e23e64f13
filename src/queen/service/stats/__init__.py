"""Numbers: what lies in the queues, what groups have read, what a server does."""
