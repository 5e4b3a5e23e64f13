"""Queen: a message broker and stream engine on PostgreSQL and Spark."""

from queen.client import Message, Pushed, Queen, Received, SyncQueen, SyncReceived
from queen.errors import QueenError

__version__ = "0.1.0"

__all__ = [
    "Message",
    "Pushed",
    "Queen",
    "QueenError",
    "Received",
    "SyncQueen",
    "SyncReceived",
    "__version__",
]
