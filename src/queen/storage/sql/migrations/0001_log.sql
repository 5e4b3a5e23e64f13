-- The log: queues, their partitions, segments of messages, and the cursors of groups.
--
-- Offsets are half-open everywhere: `head` is the offset the next message gets, a segment is
-- [base_offset, end_offset), a cursor has done everything before `committed`, and a lease
-- covers [batch_start, batch_end), of which [committed, batch_end) is still to be done.
--
-- Lock order, followed by every function:
--   seal of the queue (advisory 7001) -> partitions by id -> cursors by (partition, group)

create table queen.queues (
    id integer generated always as identity primary key,
    name text not null unique,
    namespace text not null default '',
    task text not null default '',
    options jsonb not null default '{}',
    -- Nothing is ever written before this instant again; see `queen.append`.
    sealed_until timestamptz not null default '-infinity',
    created_at timestamptz not null default clock_timestamp()
);

create index queues_by_label on queen.queues (namespace, task);

-- The partition row is the allocator: its lock orders appends. No index covers a column that
-- an append changes, and half of each page is free, so every append is a HOT update.
create table queen.partitions (
    id bigint generated always as identity primary key,
    queue_id integer not null references queen.queues (id),
    name text not null,
    head bigint not null default 0,
    head_at timestamptz not null default '-infinity',
    created_at timestamptz not null default clock_timestamp(),
    unique (queue_id, name)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    vacuum_truncate = off
);

create index partitions_by_queue on queen.partitions (queue_id, id);

-- One row for all messages of a partition that were committed together. Bodies arrive
-- compressed when that pays, so PostgreSQL does not try again.
create table queen.segments (
    partition_id bigint not null,
    base_offset bigint not null,
    end_offset bigint not null,
    created_at timestamptz not null,
    queue_id integer not null,
    codec smallint not null,
    hashes bytea,
    body bytea not null,
    primary key (partition_id, base_offset)
) with (
    autovacuum_vacuum_insert_scale_factor = 0.1,
    vacuum_truncate = off,
    toast.vacuum_truncate = off
);

alter table queen.segments alter column body set storage external;
alter table queen.segments alter column hashes set storage external;

-- Finds what was written to a queue in a time range; grows at its right edge.
create index segments_by_time on queen.segments (queue_id, created_at);

create table queen.groups (
    id integer generated always as identity primary key,
    queue_id integer not null references queen.queues (id),
    name text not null,
    subscription_mode text not null default 'all',
    -- Messages written before this are history to the group; null reads from the beginning.
    starts_at timestamptz,
    created_at timestamptz not null default clock_timestamp(),
    unique (queue_id, name)
);

-- Progress and lease of one group in one partition, in one HOT-updated row.
create table queen.cursors (
    partition_id bigint not null,
    group_id integer not null,
    committed bigint not null,
    batch_start bigint,
    batch_end bigint,
    lease_id uuid,
    lease_until timestamptz,
    -- Grows by one with each grant; with `lease_id` it fences the holder.
    epoch bigint not null default 0,
    -- Grants since `committed` last moved; counted at the grant, so that a consumer that
    -- dies without a word has used one too.
    attempts integer not null default 0,
    -- Bit i is set when offset committed + i is done although an earlier one is not.
    acked bytea,
    -- Bit i is set when the holder has given back offset committed + i in this lease.
    failed bytea,
    -- How often messages that are not done yet were given back: {"offset": count}, or null.
    failures bytea,
    -- The last sixteen leases that decided something: eight bytes of the lease, eight of the
    -- offset up to which it did. A repeated ack whose first answer was lost is told so.
    receipts bytea not null default '',
    primary key (partition_id, group_id)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    vacuum_truncate = off
);

-- Messages set aside for good, each with its own copy of the payload.
create table queen.dead_letters (
    id bigint generated always as identity primary key,
    partition_id bigint not null,
    group_id integer not null,
    message_offset bigint not null,
    transaction_id text not null,
    trace_id text,
    payload bytea not null,
    error text,
    attempts integer not null,
    created_at timestamptz not null,
    failed_at timestamptz not null default clock_timestamp(),
    unique (partition_id, group_id, message_offset)
);

-- Queues that want dedup over everything retained pay for one row per message.
create table queen.dedup_index (
    partition_id bigint not null,
    hash bytea not null,
    message_offset bigint not null,
    primary key (partition_id, hash, message_offset)
) with (autovacuum_vacuum_insert_scale_factor = 0.1);
