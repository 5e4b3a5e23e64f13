"""What a pop was leased: read from its answer, looked at message by message, and acked."""
