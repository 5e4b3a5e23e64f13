-- What reads queues by sealed time: everything of [T1, T2), whatever the count of partitions.

alter table queen.groups
    -- The group reads all partitions up to one instant, `starts_at`, and has no cursors: its
    -- progress is one row to write, not one for each partition.
    add column reads_by_time boolean not null default false,
    -- How often somebody else has moved it; whoever reads for it learns so that it was.
    add column moves integer not null default 0;

alter table queen.queues
    -- The time of the newest message that retention has removed. Whoever starts at or before
    -- it may miss something.
    add column gone_until timestamptz not null default '-infinity';
