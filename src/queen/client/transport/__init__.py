"""Requests and answers: connections, several servers as one, errors."""
