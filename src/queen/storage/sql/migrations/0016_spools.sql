-- How far the spools of servers are drained. A spool is a folder of files beside a server; what
-- was read from it is appended and counted here in one transaction.
create table queen.spools (
    id uuid primary key,
    -- The last record that is done; records are numbered upwards and never alike.
    drained bigint not null,
    changed_at timestamptz not null default now()
);

-- Records that could not be stored yet were written again, to the spool of those that wait, while
-- the spool they came from went on. Only what stands here was moved: a copy without a row was
-- written by a server that died before it could say so, and its original still counts.
create table queen.spool_moves (
    spool_id uuid not null,
    first_seq bigint not null,
    last_seq bigint not null,
    primary key (spool_id, first_seq)
);
