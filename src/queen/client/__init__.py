"""The Python client: a fluent face for everything a broker does."""

from queen.client.messages import Message, Pushed, Received
from queen.client.queen import Queen
from queen.client.sync import SyncQueen, SyncReceived

__all__ = ["Message", "Pushed", "Queen", "Received", "SyncQueen", "SyncReceived"]
