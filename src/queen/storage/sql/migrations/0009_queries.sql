-- Queries of the published streaming SDK: their definitions, and the state between two cycles.
--
-- Lock order, behind everything a push or an ack locks:
--   seal -> partitions by id -> cursors -> query_lanes -> query_state

create table queen.queries (
    -- A reset gives a query a new id: runners of the old definition do not find it any more.
    id uuid primary key default gen_random_uuid(),
    name text not null,
    source_queue text not null,
    sink_queue text,
    config_hash text not null,
    -- It keeps windows. What else keeps state is a gate.
    is_windowed boolean not null default false,
    created_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz not null default clock_timestamp(),
    unique (source_queue, name)
);

-- One query in one partition of its source. The row's lock puts its cycles one after the other.
create table queen.query_lanes (
    query_id uuid not null references queen.queries (id),
    partition_id bigint not null references queen.partitions (id) on delete cascade,
    -- The group whose lease guards the state.
    consumer_group text not null,
    -- Grows by one with each cycle.
    epoch bigint not null default 0,
    -- The epoch up to which state was shown to somebody who may close windows without a lease.
    offered bigint not null default -1,
    primary key (query_id, partition_id)
) with (fillfactor = 50);

create index query_lanes_by_partition on queen.query_lanes (partition_id);

create table queen.query_state (
    query_id uuid not null,
    partition_id bigint not null,
    key text collate "C" not null,
    -- The epoch of the cycle that wrote it.
    epoch bigint not null,
    -- `windowEnd` of the value, if it has one.
    window_end_ms double precision,
    codec smallint not null,
    -- JSON as it was sent, sealed when the source queue is encrypted.
    value bytea not null,
    updated_at timestamptz not null default clock_timestamp(),
    primary key (query_id, partition_id, key),
    foreign key (query_id, partition_id)
        references queen.query_lanes (query_id, partition_id) on delete cascade
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
