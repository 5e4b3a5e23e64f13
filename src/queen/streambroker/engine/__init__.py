"""The exact meaning of the stream commands of Redis, without any network or storage."""

from queen.streambroker.engine.memory import MemoryExecutor

__all__ = ["MemoryExecutor"]
