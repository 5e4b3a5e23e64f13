"""The home: of the workers of one server, the one that writes and leases for all of them."""
