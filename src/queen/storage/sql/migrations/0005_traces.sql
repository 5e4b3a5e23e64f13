-- What consumers tell about messages on their way, and switches that all servers obey.

-- One row per event. The message is named, not referenced: it may be gone before its traces.
create table queen.traces (
    id bigint generated always as identity primary key,
    partition_id bigint not null,
    transaction_id text not null,
    consumer_group text not null,
    event_type text not null,
    -- JSON text as it was sent.
    data text not null,
    created_at timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_insert_scale_factor = 0.1);

create index traces_by_message on queen.traces (partition_id, transaction_id, id);
create index traces_by_time on queen.traces (created_at);

create table queen.trace_names (
    trace_id bigint not null references queen.traces (id) on delete cascade,
    name text not null,
    primary key (trace_id, name)
) with (autovacuum_vacuum_insert_scale_factor = 0.1);

create index trace_names_by_name on queen.trace_names (name, trace_id);

create table queen.system_state (
    key text primary key,
    value jsonb not null,
    updated_at timestamptz not null default clock_timestamp()
);
