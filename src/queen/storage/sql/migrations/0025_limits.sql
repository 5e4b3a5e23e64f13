-- Rates and limits of groups: only groups of queues with such an option have rows. An older server
-- gives out what it likes meanwhile.

-- A token bucket for each group: what it may be given, as of an instant; null is full. Whoever
-- claims for a group with a limit locks its row first, before any cursor.
create table queen.paced_groups (
    group_id integer primary key references queen.groups on delete cascade,
    tokens double precision,
    filled_at timestamptz not null default clock_timestamp()
) with (fillfactor = 50);

-- The same for each partition of a group, and whether there may be something of it on a lease: the
-- cursor, or its spans, say how much.
create table queen.paced_partitions (
    group_id integer not null references queen.groups on delete cascade,
    partition_id bigint not null references queen.partitions on delete cascade,
    tokens double precision,
    filled_at timestamptz not null default clock_timestamp(),
    may_hold boolean not null default false,
    primary key (group_id, partition_id)
) with (fillfactor = 50);

create index paced_partitions_by_partition on queen.paced_partitions (partition_id);
create index paced_partitions_held on queen.paced_partitions (group_id) where may_hold;
