"""A worker dies with entries in its hands, and another one takes them over."""

import os
import time
import uuid

from queen.streambroker import sync_stream_broker_from_url

URL = os.environ.get("STREAMS_URL", "memory://")
STREAM, GROUP = f"tasks-{uuid.uuid4().hex[:8]}", "processors"

with sync_stream_broker_from_url(URL) as broker:
    broker.create_group(STREAM, GROUP)
    broker.xadd(STREAM, {"task": "report"})
    broker.xadd(STREAM, {"task": "backup"})

    taken = broker.xreadgroup(GROUP, "processor-1", STREAM, count=10)
    print(f"processor-1 takes {len(taken)} and is never heard of again")
    assert broker.xautoclaim(STREAM, GROUP, "processor-2", min_idle_ms=60_000) == [], "too early"

    time.sleep(0.1)
    claimed = broker.xautoclaim(STREAM, GROUP, "processor-2", min_idle_ms=50, count=10)
    for entry in claimed:
        print(f"processor-2 takes over {entry.data['task']}, delivery {entry.delivery_count}")
    broker.xack(STREAM, GROUP, [entry.id for entry in claimed])

    # The name of the dead one is still known; what it may have pending would be given back.
    print(f"it had {broker.delete_consumer(STREAM, GROUP, 'processor-1')} pending")
    assert broker.xpending(STREAM, GROUP) == []
