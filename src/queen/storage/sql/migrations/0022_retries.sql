-- The circuit breakers of groups: what became of the last messages of a group and, while nearly
-- all of them fail, when it is tried again with a single one. Only groups of queues with the
-- option `breaker` have a row. An older server neither counts nor holds anything back.
create table queen.group_breakers (
    group_id integer primary key references queen.groups on delete cascade,
    -- A bit for each outcome that is remembered, the newest first; set where it was a failure.
    outcomes bytea,
    counted integer not null default 0,
    -- Since when it is open; null while it is closed.
    opened_at timestamptz,
    -- When a single message may be tried.
    probe_at timestamptz,
    -- The lease of the message that is tried, and until when a server is about to claim it.
    probe_lease uuid,
    probe_partition bigint,
    probe_claim_until timestamptz
) with (fillfactor = 50);

create index group_breakers_open on queen.group_breakers (opened_at) where opened_at is not null;
