"""A service that sends mails in the background: the request is answered, the worker sends later.

The worker is a thread here; it may as well be a process on another machine. Mails that fail are
tried again a little later, and set aside after the third time.
"""

import os
import threading
import uuid

from queen.streambroker import SyncStreamBroker, sync_stream_broker_from_url

URL = os.environ.get("STREAMS_URL", "memory://")
STREAM, GROUP = f"email-queue-{uuid.uuid4().hex[:8]}", "email-senders"


class EmailService:
    def __init__(self, broker: SyncStreamBroker) -> None:
        self._broker = broker

    def send_later(self, to: str, subject: str, request_id: str) -> str:
        """Have a mail sent; asked again with the same id, it is sent once."""
        mail = {"to": to, "subject": subject}
        return self._broker.xadd(STREAM, mail, idempotency_key=request_id)


class EmailWorker(threading.Thread):
    def __init__(self, broker: SyncStreamBroker, name: str) -> None:
        super().__init__(name=name)
        self._broker = broker
        self.sent: list[str] = []
        self.is_stopping = False

    def run(self) -> None:
        read = self._broker.xreadgroup
        while not self.is_stopping:
            for mail in read(GROUP, self.name, STREAM, 1, 100, claim_idle_ms=60_000):
                try:
                    self.send(mail.data)
                except ConnectionError as error:
                    print(f"delivery {mail.delivery_count} failed: {error}")
                    self._broker.nack(STREAM, GROUP, [mail.id], delay_ms=50)
                else:
                    self._broker.xack(STREAM, GROUP, [mail.id])

    def send(self, mail: dict[str, str]) -> None:
        if not mail["to"].endswith("@example.com"):
            raise ConnectionError(f"nobody answers at {mail['to']}")
        self.sent.append(mail["to"])


with sync_stream_broker_from_url(URL) as broker:
    broker.create_group(STREAM, GROUP)
    broker.set_delivery_limit(STREAM, GROUP, 3)
    service = EmailService(broker)
    first = service.send_later("anna@example.com", "Welcome!", "request-1")
    assert service.send_later("anna@example.com", "Welcome!", "request-1") == first
    service.send_later("bruno@nowhere", "Welcome!", "request-2")

    worker = EmailWorker(broker, "worker-1")
    worker.start()
    # Dead letters are a stream like any other, with groups and readers that wait.
    broker.create_group(f"{STREAM}.dlq", "watchers", "0")
    (letter,) = broker.xreadgroup("watchers", "watcher", f"{STREAM}.dlq", block_ms=20_000)
    worker.is_stopping = True
    worker.join()
    print(f"sent to {worker.sent}")
    print(f"set aside: {letter.data['to']}")
    assert letter.dead_letter is not None and letter.dead_letter.deliveries == 3
