"""A consumer that some messages kill: `python -m tests.acceptance.poisoned URL QUEUE FILE HOW`.

Each message that it finishes is a line in the file, written before the ack, so that what was
done is known even of a process that is gone. A message that says it is poison ends the
process in the middle of its work, as a crash in native code or the kernel's memory killer
would: nothing is acked, nothing is closed.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from tests.api import Api

BATCH = 10
# Long before the lease ends, so that a slow machine loses none.
_RENEW_S = 0.5
_RENEW_FOR_S = 3


class Consumer:
    def __init__(self, url: str, queue: str, path: str, how: str) -> None:
        self._api = Api(url)
        self._queue = queue
        self._effects = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._acks_each = how == "each"

    def run(self) -> None:
        while True:
            asked_at = time.monotonic()
            messages = self._api.messages(self._queue, batch=BATCH, wait="true", timeout=1000)
            for message in messages:
                if time.monotonic() - asked_at > _RENEW_S:
                    self._api.extend(message["leaseId"], {"seconds": _RENEW_FOR_S})
                    asked_at = time.monotonic()
                self._work(message)
                if self._acks_each:
                    self._api.ack(message)
            if messages and not self._acks_each:
                self._api.ack_batch(messages)

    def _work(self, message: dict[str, Any]) -> None:
        if message["data"]["poison"]:
            os.write(self._effects, f"died {message['transactionId']}\n".encode())
            os._exit(9)
        os.write(self._effects, f"done {message['transactionId']}\n".encode())


if __name__ == "__main__":
    Consumer(*sys.argv[1:]).run()
