"""How the path of a route names a message."""

from __future__ import annotations

from queen.server.api.routing import Param
from queen.wire.parts import PartitionId, TransactionId

MESSAGE_PATH = (
    Param(
        "partition",
        PartitionId,
        "The id of a partition.",
        example="00000000-0000-8007-bfff-ffffffffffff",
    ),
    Param("message", TransactionId, "The transaction id of a message.", example="order-1042"),
)
