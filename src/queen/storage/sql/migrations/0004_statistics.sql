-- What operators look at: counts computed from the log now and then, and what servers did.

-- When the counts were last computed, and what that cost. One row.
create table queen.stats_round (
    one boolean primary key default true check (one),
    computed_at timestamptz not null default 'epoch',
    took_ms double precision not null default 0,
    -- How many rows were looked at.
    rows_counted bigint not null default 0,
    -- Bytes are counted less often: that reads every segment, not only every partition.
    bytes_at timestamptz not null default 'epoch',
    bytes_took_ms double precision not null default 0,
    segments_counted bigint not null default 0
);
insert into queen.stats_round default values;

create table queen.queue_stats (
    queue_id integer primary key references queen.queues (id) on delete cascade,
    partitions bigint not null default 0,
    -- Messages ever written, and those that retention has left.
    written bigint not null default 0,
    retained bigint not null default 0,
    -- Retained messages that some group has not done yet; all of them while there is no group.
    outstanding bigint not null default 0,
    leased_partitions bigint not null default 0,
    leased bigint not null default 0,
    dead_letters bigint not null default 0,
    segments bigint not null default 0,
    stored_bytes bigint not null default 0
) with (fillfactor = 70);

create table queen.group_stats (
    group_id integer primary key references queen.groups (id) on delete cascade,
    queue_id integer not null,
    -- The sum of the group's positions over all partitions.
    done bigint not null,
    pending bigint not null,
    partitions_behind bigint not null,
    leased_partitions bigint not null,
    leased bigint not null,
    dead_letters bigint not null,
    -- When the oldest message was written that the group has not done; null when idle.
    oldest_unread_at timestamptz
) with (fillfactor = 70);

create index group_stats_by_queue on queen.group_stats (queue_id);

-- Every server process that has reported. `totals` is everything it has counted since it
-- started, in the order of `queen.service.activity.FIELDS`.
create table queen.servers (
    id integer generated always as identity primary key,
    hostname text not null,
    port integer not null,
    worker integer not null,
    started_at timestamptz not null default clock_timestamp(),
    seen_at timestamptz not null default clock_timestamp(),
    totals bigint[] not null default '{}'
) with (fillfactor = 50);

-- What one server did with one queue in one minute. A server writes its own numbers for the
-- minute again and again, so a write that is repeated counts nothing twice.
create table queen.activity (
    queue_id integer not null references queen.queues (id) on delete cascade,
    bucket timestamptz not null,
    server_id integer not null,
    push_requests bigint not null,
    push_messages bigint not null,
    push_duplicates bigint not null,
    push_bytes bigint not null,
    pop_requests bigint not null,
    pop_messages bigint not null,
    pop_empty bigint not null,
    auto_acked bigint not null,
    ack_requests bigint not null,
    ack_ok bigint not null,
    ack_failed bigint not null,
    dead_letters bigint not null,
    transactions bigint not null,
    partitions_created bigint not null,
    -- How long messages had waited when they were popped.
    lag_count bigint not null,
    lag_sum_ms bigint not null,
    lag_max_ms bigint not null,
    -- The most polls that were parked at one time.
    parked bigint not null,
    primary key (queue_id, bucket, server_id)
) with (fillfactor = 70);

create index activity_by_time on queen.activity (bucket);

-- What one server process used in one minute. The arrays have one element for each gauge, in
-- the order of `queen.service.vitals.GAUGES`.
create table queen.worker_samples (
    bucket timestamptz not null,
    server_id integer not null references queen.servers (id) on delete cascade,
    samples integer not null,
    requests bigint not null,
    database_errors bigint not null,
    sums double precision[] not null,
    lows double precision[] not null,
    highs double precision[] not null,
    lasts double precision[] not null,
    primary key (bucket, server_id)
) with (fillfactor = 70);

create index worker_samples_by_server on queen.worker_samples (server_id);

-- What the clean-up has removed. Kinds: retention, completed_retention,
-- max_wait_time_eviction, ttl, partition_cleanup (whose `segments` counts partitions).
create table queen.retention_history (
    id bigint generated always as identity primary key,
    executed_at timestamptz not null default clock_timestamp(),
    queue_id integer not null references queen.queues (id) on delete cascade,
    kind text not null,
    segments bigint not null default 0,
    messages bigint not null default 0
);

create index retention_history_by_time on queen.retention_history (executed_at);
create index retention_history_by_queue on queen.retention_history (queue_id);
