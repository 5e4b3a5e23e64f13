"""Two workers of one group: each entry goes to one of them, and the group knows who has what."""

import os
import uuid

from queen.streambroker import sync_stream_broker_from_url

URL = os.environ.get("STREAMS_URL", "memory://")
STREAM, GROUP = f"orders-{uuid.uuid4().hex[:8]}", "processors"

with sync_stream_broker_from_url(URL) as broker:
    # A group may be older than its stream.
    broker.create_group(STREAM, GROUP, "0")
    for order in (1, 2, 3):
        broker.xadd(STREAM, {"order": order})

    first = broker.xreadgroup(GROUP, "worker-1", STREAM, count=2)
    second = broker.xreadgroup(GROUP, "worker-2", STREAM, count=10)
    print(f"worker-1 got {[entry.data['order'] for entry in first]}")
    print(f"worker-2 got {[entry.data['order'] for entry in second]}")

    info = broker.get_stream_group_info(STREAM, GROUP)
    assert info is not None
    for consumer in info.consumers:
        print(f"{consumer.name} has {consumer.pending} pending")

    done = broker.xack(STREAM, GROUP, [entry.id for entry in first + second])
    print(f"acked {done}, still pending {broker.xpending(STREAM, GROUP)}")
    assert broker.xack(STREAM, GROUP, [first[0].id]) == 0, "an ack counts once"
