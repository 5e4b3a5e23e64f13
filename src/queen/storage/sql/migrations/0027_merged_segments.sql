-- Merged segments: small neighbours of a partition that lie in one row.
--
-- A queue that is fed one message per request has a segment for each. When they are old, many
-- become one row of `queen.segments`, whose codec has bit 16 set, and what they were is kept here:
-- which messages were stored together, and when. Such a run of messages is a *stretch*; a segment
-- that was never merged is one stretch. In `queen.segments` `created_at` is the time of the first
-- of them.
--
-- A table of its own, and not columns of the segments: those have millions of rows which would
-- have to be looked through for an index, and no plain row is longer for it.

create table queen.merged_segments (
    partition_id bigint not null,
    base_offset bigint not null,
    end_offset bigint not null,
    queue_id integer not null,
    first_at timestamptz not null,
    last_at timestamptz not null,
    -- Where each stretch ends, counted from the base offset, and when it was written.
    stretch_ends integer[] not null,
    stretch_times timestamptz[] not null,
    primary key (partition_id, base_offset),
    -- Whoever looks for what began before an instant need not look further back.
    check (last_at - first_at <= interval '10 minutes')
) with (vacuum_truncate = off, toast.vacuum_truncate = off);

-- What was written in a range of time is found from both sides: what begins in it, and what began
-- before it and ends in it.
create index merged_segments_by_start on queen.merged_segments (queue_id, first_at);
create index merged_segments_by_end on queen.merged_segments (queue_id, last_at);

alter table queen.queues
    -- What was written before this is merged where it is worth it.
    add column merged_until timestamptz not null default '-infinity';

alter table queen.servers
    -- Nothing is merged while a server lives that does not know merged segments.
    add column knows_merged boolean not null default false;
