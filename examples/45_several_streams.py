"""Several groups read one stream, each all of it; and one stream knows nothing of another."""

import os
import uuid

from queen.streambroker import sync_stream_broker_from_url

URL = os.environ.get("STREAMS_URL", "memory://")
RUN = uuid.uuid4().hex[:8]
EMAILS, SMS = f"emails-{RUN}", f"sms-{RUN}"

with sync_stream_broker_from_url(URL) as broker:
    for stream, group in ((EMAILS, "senders"), (EMAILS, "statistics"), (SMS, "senders")):
        broker.create_group(stream, group, "0")
    broker.xadd(EMAILS, {"to": "anna"})
    broker.xadd(EMAILS, {"to": "bruno"})
    broker.xadd(SMS, {"to": "carla"})

    for stream, group in ((EMAILS, "senders"), (EMAILS, "statistics"), (SMS, "senders")):
        entries = broker.xreadgroup(group, "worker-1", stream, count=10)
        broker.xack(stream, group, [entry.id for entry in entries])
        print(f"{stream.partition('-')[0]}, {group}: {[entry.data['to'] for entry in entries]}")

    late = "auditors"
    broker.create_group(EMAILS, late)  # from now on
    assert broker.xreadgroup(late, "auditor", EMAILS, count=10) == []
    broker.set_group_id(EMAILS, late, "0")
    print(f"auditors, moved back: {len(broker.xreadgroup(late, 'auditor', EMAILS, count=10))}")
    print(f"streams: {[name.partition('-')[0] for name in broker.scan_streams(f'*-{RUN}')]}")
