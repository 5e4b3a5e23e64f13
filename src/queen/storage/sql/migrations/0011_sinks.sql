-- Sinks: results that arrive in parts, from many tasks, and appear all at once.
--
-- A task stages its messages as ready segments. They wait in `queen.segments` itself, under
-- partition id -part and offset = position, where nobody looks: every reader asks for a real
-- partition or for a real queue, and these have neither (queue 0). To publish a batch is then
-- to give its rows their partition, offsets and time. The bodies, which lie outside their rows,
-- are not touched, so that the locks of an append are held for a moment, however much it is.
--
--   sinks ──< sink_parts (one request of one attempt) ──< sink_pieces ── segments (-part, position)
--
-- Lock order: sink -> its parts -> then as everywhere (seals, partitions by id).

create table queen.sinks (
    -- What tells one query from another over all its restarts.
    query text primary key,
    -- The run of the query that may publish; its number fences all earlier ones.
    run text not null,
    epoch bigint not null default 1,
    past_runs text[] not null default '{}',
    -- Batches are published in order, so the last one stands for all before it.
    last_batch bigint not null default -1,
    last_messages bigint not null default 0,
    -- Who may use it: null is everybody who may see all namespaces.
    namespaces text[],
    -- A query that publishes one batch and never comes back.
    once boolean not null default false,
    used_at timestamptz not null default clock_timestamp()
);

create table queen.sink_parts (
    id bigint generated always as identity primary key,
    query text not null,
    batch bigint not null,
    run text not null,
    task integer not null,
    attempt bigint not null,
    part integer not null,
    messages bigint not null,
    -- Whether transaction ids must be compared with what is stored. Ids that the sink has made
    -- are new and will not come again: their segments have no hashes.
    compared boolean not null,
    staged_at timestamptz not null default clock_timestamp(),
    unique (query, batch, run, task, attempt, part)
) with (
    -- Every row is deleted soon.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    vacuum_truncate = off
);

create table queen.sink_pieces (
    part_id bigint not null,
    position integer not null,
    partition_id bigint not null,
    messages integer not null,
    bytes integer not null,
    -- By name too: a partition that is deleted meanwhile is made anew.
    queue text not null,
    partition text not null,
    primary key (part_id, position)
) with (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    vacuum_truncate = off
);

create index sink_pieces_by_partition on queen.sink_pieces (partition_id, part_id);
