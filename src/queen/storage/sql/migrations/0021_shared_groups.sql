-- Shared groups: many consumers hold different messages of one partition at once.
--
--   partition   0 ......... committed ................... handed ........ head
--                  done     | spans, and what is done    |   not handed out yet
--
-- `committed` keeps its meaning: everything before it is done. What was handed out and is not done
-- lies in spans, each with a lease, attempts and a time of its own; what lies between them is done.
--
-- Spans are read and written under the lock of their cursor, so the lock order grows at its end:
--   ... -> cursors by (partition, group) -> shared_spans by (partition, group, first_offset)

alter table queen.groups add column shared boolean not null default false;

alter table queen.cursors
    -- Where the next message lies that nobody was given yet; null: the group reads in order.
    add column handed bigint,
    -- Messages of all spans that are not done.
    add column in_flight bigint not null default 0;

create table queen.shared_spans (
    partition_id bigint not null,
    group_id integer not null,
    -- What it covers: [first_offset, end_offset). It stays as it is while it is leased.
    first_offset bigint not null,
    end_offset bigint not null,
    -- Null: it was given back. With `due_at` in the past the lease has lapsed.
    lease_id uuid,
    epoch bigint not null default 0,
    -- When it may be handed out (again): the end of its lease, or of its wait for the next try.
    due_at timestamptz not null,
    -- How often each of its messages was handed out, and how often it was said to have failed.
    attempts integer not null,
    told integer not null default 0,
    -- It was one message alone that was handed out last.
    is_alone boolean not null default false,
    -- Bit i is set when offset first_offset + i is done.
    acked bytea,
    -- Bit i is set when it was given back in this lease: it is a span of its own since.
    failed bytea,
    -- What was given back may begin where the lease began that has given it back.
    id bigint generated always as identity,
    primary key (partition_id, group_id, first_offset, id)
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    vacuum_truncate = off
);

create index shared_spans_due on queen.shared_spans (partition_id, group_id, due_at);

-- It says more than before.
drop function if exists queen.group_backlogs(bigint, bigint, timestamptz);
