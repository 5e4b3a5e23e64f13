"""Queen: a message broker and stream engine on PostgreSQL and Spark."""

from queen.errors import QueenError

__version__ = "0.1.0"

__all__ = ["QueenError", "__version__"]
