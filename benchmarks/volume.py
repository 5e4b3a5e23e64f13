"""A log of five million messages in a hundred thousand partitions, written by SQL alone.

Pushing that much takes minutes; the tables do not care who filled them. Every body is a real
segment, so whatever reads messages can read these.
"""

from __future__ import annotations

import asyncpg

from queen.core.frame import compress, encode_body, segment_of

QUEUE = "volume"
PARTITIONS = 100_000
MESSAGES_EACH = 50

# One group has read half of every partition and holds a thousand leases. One has cursors in
# every other partition only. One came in the middle of the log and has read nothing.
_FILL = """
with q as (
    insert into queen.queues (name, namespace, task) values ($1, 'bench', 'volume') returning id
),
g as (
    insert into queen.groups (queue_id, name, subscription_mode, starts_at)
    select q.id, w.name, w.mode, w.at from q, (values
        ('__QUEUE_MODE__', 'all', null::timestamptz), ('sparse', 'all', null),
        ('late', 'timestamp', clock_timestamp() - interval '30 minutes')) w (name, mode, at)
    returning id, name, queue_id
),
p as (
    insert into queen.partitions (queue_id, name, head, head_at)
    select q.id, 'p' || i, $3, clock_timestamp() - interval '1 hour' * (i::float8 / $2)
    from q, generate_series(1, $2) i
    returning id, queue_id, head, head_at
),
s as (
    insert into queen.segments
        (partition_id, base_offset, end_offset, created_at, queue_id, codec, hashes, body)
    select id, 0, head, head_at, queue_id, $4, null, $5 from p
)
insert into queen.cursors
    (partition_id, group_id, committed, batch_start, batch_end, lease_id, lease_until)
select p.id, g.id, p.head / 2,
       case when l.leased then p.head / 2 end, case when l.leased then p.head / 2 + 10 end,
       case when l.leased then gen_random_uuid() end,
       case when l.leased then clock_timestamp() + interval '1 hour' end
from p join g on g.name = '__QUEUE_MODE__' or (g.name = 'sparse' and p.id % 2 = 0)
cross join lateral (select g.name = '__QUEUE_MODE__' and p.id % 100 = 0 as leased) l
"""


# Ten thousand queues that each have a partition, a group and something to read.
_BREADTH = """
with q as (
    insert into queen.queues (name, namespace) select 'queue-' || i, 'breadth'
    from generate_series(1, $1) i returning id
),
g as (insert into queen.groups (queue_id, name) select id, 'readers' from q),
p as (
    insert into queen.partitions (queue_id, name, head, head_at)
    select id, 'Default', $2, clock_timestamp() from q returning id, queue_id, head, head_at
)
insert into queen.segments
    (partition_id, base_offset, end_offset, created_at, queue_id, codec, hashes, body)
select id, 0, head, head_at, queue_id, $3, null, $4 from p
"""
# A million dead letters of the large queue, of a hundred errors.
_DEAD = """
insert into queen.dead_letters
    (partition_id, queue_id, group_id, consumer_group, message_offset, transaction_id, payload,
     error, attempts, created_at, failed_at)
select p.id, p.queue_id, g.id, g.name, 1000 + i, 'dead-' || p.id || '-' || i, '{"n":1}',
       'error ' || (p.id % 100), 3, clock_timestamp() - interval '1 hour',
       clock_timestamp() - interval '1 hour' * random()
from queen.partitions p
join queen.queues q on q.id = p.queue_id and q.name = $1
join queen.groups g on g.queue_id = q.id and g.name = '__QUEUE_MODE__'
cross join generate_series(1, $2) i
"""


async def fill_breadth(
    connection: asyncpg.Connection, queues: int, dead_letters_each: int, each: int = MESSAGES_EACH
) -> None:
    """Write many queues, and dead letters in every partition of the large one."""
    codec, body = _body(each)
    await connection.execute(_BREADTH, queues, each, codec, body, timeout=600)
    await connection.execute(_DEAD, QUEUE, dead_letters_each, timeout=600)
    await connection.execute("analyze", timeout=600)


def _body(each: int) -> tuple[int, bytes]:
    ids = [f"message-{n}".encode() for n in range(each)]
    payloads = [b'{"n":%d,"text":"some forty bytes of ordinary payload"}' % n for n in range(each)]
    return compress(encode_body(segment_of(ids, payloads)))


async def fill(
    connection: asyncpg.Connection, partitions: int = PARTITIONS, each: int = MESSAGES_EACH
) -> None:
    """Write the queue with everything in it."""
    codec, body = _body(each)
    await connection.execute(_FILL, QUEUE, partitions, each, codec, body, timeout=600)
    await connection.execute("analyze", timeout=600)
