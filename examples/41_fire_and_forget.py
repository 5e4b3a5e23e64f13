"""Add and go on: whoever adds an entry does not wait until it is worked on."""

import os
import uuid

from queen.streambroker import sync_stream_broker_from_url

URL = os.environ.get("STREAMS_URL", "memory://")
STREAM = f"notifications-{uuid.uuid4().hex[:8]}"

with sync_stream_broker_from_url(URL) as broker:
    # Any JSON value is an entry; they need not be alike.
    ids = [
        broker.xadd(STREAM, {"type": "email", "to": "anna@example.com", "subject": "Welcome!"}),
        broker.xadd(STREAM, {"type": "sms", "to": "+39 02 1234", "text": "Your code is 4711"}),
        broker.xadd(STREAM, ["report", 2026, {"pages": [1, 2]}]),
    ]
    assert len(set(ids)) == 3
    print(f"{broker.xlen(STREAM)} entries")
    for entry in broker.xrange(STREAM):
        print(entry.data)

    # Ids are a time in milliseconds and a number. Nothing is removed by being read, only by a trim.
    assert [entry.id for entry in broker.xrange(STREAM)] == ids
    print(f"removed {broker.xtrim(STREAM, 1)}, left {broker.xlen(STREAM)}")
    assert [entry.id for entry in broker.xrange(STREAM)] == ids[-1:]
