-- Streams with the verbs of Redis. The entries of a stream are the messages of one partition of
-- the queue that has its name; all else about it (ids, groups, what is pending) is the sum of
-- its journal: one record for each commit, in the order of versions. A snapshot is that sum up to
-- a version, and the records up to there are removed.
create table queen.entry_streams (
    id bigint generated always as identity primary key,
    queue_id integer not null unique references queen.queues (id) on delete cascade,
    partition_id bigint not null references queen.partitions (id) on delete cascade,
    -- The last record. Whoever writes the next one has read all before it.
    version bigint not null default 0,
    -- Whether there is a stream: one that was deleted leaves its queue and its numbers.
    is_alive boolean not null default false,
    snapshot_version bigint not null default 0,
    snapshot bytea
) with (fillfactor = 50);

-- The server compresses what is worth it.
alter table queen.entry_streams alter column snapshot set storage external;

create index entry_streams_by_partition on queen.entry_streams (partition_id);

create table queen.entry_journal (
    stream_id bigint not null references queen.entry_streams (id) on delete cascade,
    version bigint not null,
    body bytea not null,
    primary key (stream_id, version)
);

alter table queen.entry_journal alter column body set storage external;
