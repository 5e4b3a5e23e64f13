-- Streams: windows over queues, handed out as leased work.
--
-- The planner seals the source queues up to a boundary and then writes one row for each key
-- that has something before it. What is sealed never changes, so a window is a list of offset
-- ranges for ever. Windows of a stream get their ids in the order of their ends: "everything
-- up to this window" is one number.
--
-- A group takes windows over from the plan in that order (`frontier`), and a row of
-- `stream_work` is what it has taken and not finished. A new group, a seek, a group that is
-- far behind: all of them cost one number and not one row for each window.
--
-- Lock order: row of the stream, or (advisory 7003, group) and then rows of work. Appends of
-- the same transaction come first.

create table queen.streams (
    id integer generated always as identity primary key,
    uuid uuid not null default gen_random_uuid(),
    name text not null unique,
    namespace text not null default '',
    definition jsonb not null,
    -- Every window that ends before this, or at it, is planned; null before the first.
    planned_until timestamptz,
    -- When there may be something to plan.
    plan_at timestamptz not null default '-infinity',
    created_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz not null default clock_timestamp()
);

create index streams_to_plan on queen.streams (plan_at);

create table queen.stream_sources (
    stream_id integer not null references queen.streams (id) on delete cascade,
    queue_id integer not null references queen.queues (id) on delete cascade,
    primary key (stream_id, queue_id)
);

create index streams_of_queue on queen.stream_sources (queue_id);

create table queen.stream_windows (
    stream_id integer not null references queen.streams (id) on delete cascade,
    id bigint generated always as identity,
    key text not null,
    starts_at timestamptz not null,
    ends_at timestamptz not null,
    -- What is in it: [from, to) of each partition.
    partitions bigint[] not null,
    from_offsets bigint[] not null,
    to_offsets bigint[] not null,
    messages bigint not null,
    bytes bigint not null,
    primary key (stream_id, id)
);

create index stream_windows_by_end on queen.stream_windows (stream_id, ends_at);
create index stream_windows_by_key on queen.stream_windows (stream_id, key, id);

-- What sessions and count windows have gathered and not closed yet.
create table queen.stream_open (
    stream_id integer not null references queen.streams (id) on delete cascade,
    key text not null,
    begins_at timestamptz not null,
    -- When it closes if nothing more arrives.
    closes_at timestamptz not null,
    gathered bytea not null,
    primary key (stream_id, key)
);

create index stream_open_by_close on queen.stream_open (stream_id, closes_at);

create table queen.stream_groups (
    id integer generated always as identity primary key,
    stream_id integer not null references queen.streams (id) on delete cascade,
    name text not null,
    -- Windows that end before this, or at it, are history to the group.
    starts_at timestamptz not null default '-infinity',
    -- Windows up to this one were taken over from the plan.
    frontier bigint not null default 0,
    paused boolean not null default false,
    -- Finished windows whose row of work is gone.
    done bigint not null default 0,
    last_done_at timestamptz,
    last_done_end timestamptz,
    used_at timestamptz not null default clock_timestamp(),
    created_at timestamptz not null default clock_timestamp(),
    unique (stream_id, name)
);

create table queen.stream_work (
    group_id integer not null references queen.stream_groups (id) on delete cascade,
    window_id bigint not null,
    key text not null,
    -- 0 waits for earlier windows of its key, 1 is ready or leased, 2 is done.
    state smallint not null,
    -- Nobody gets it before this: the end of a lease, or of the pause before a retry.
    available_at timestamptz not null default '-infinity',
    lease_id uuid,
    consumer text,
    granted_at timestamptz,
    -- Counted at the grant, so that a consumer that dies without a word has used one too.
    attempts integer not null default 0,
    error text,
    -- The last lease that decided something: a repeated ack is told so.
    settled_lease uuid,
    done_at timestamptz,
    primary key (group_id, window_id)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    vacuum_truncate = off
);

-- A grant changes no column of an index.
create index stream_work_open on queen.stream_work (group_id, window_id) where state = 1;
create index stream_work_by_key on queen.stream_work (group_id, key, window_id) where state < 2;
create index stream_work_done on queen.stream_work (done_at) where state = 2;

create table queen.stream_dead (
    id bigint generated always as identity primary key,
    group_id integer not null references queen.stream_groups (id) on delete cascade,
    window_id bigint not null,
    attempts integer not null,
    error text,
    settled_lease uuid,
    failed_at timestamptz not null default clock_timestamp(),
    unique (group_id, window_id)
);
