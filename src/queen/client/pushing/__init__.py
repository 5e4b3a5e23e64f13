"""Pushing: from payloads to requests, alone or shared, and from answers to results."""
