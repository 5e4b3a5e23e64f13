"""HTTP/1.1: connections, their bounds, and the bytes on them."""
