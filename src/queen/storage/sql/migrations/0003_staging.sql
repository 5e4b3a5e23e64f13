-- Staging: messages that are not in the log yet.
--
-- A message waits here for one of two things: that the transaction which staged it commits
-- (`queen.push` in a transaction of the user's), or that its time comes (`deliver_at`). The
-- broker's relay then appends it and deletes it here, in one transaction.
--
-- Why not append at once? An append locks its partition until its transaction ends, because
-- offsets are dense and in commit order. A user's transaction may stay open for minutes, and
-- must hold up no other producer, no consumer and no seal. An insert here locks nothing.
--
-- The order of commits. PostgreSQL does not say in which order transactions committed, so
-- each takes a number while it commits: a deferred trigger draws `seq` for the whole
-- transaction when COMMIT begins, and the relay appends in the order of (seq, id). This is an
-- order of commits:
--   Let A's commit have returned, or A's rows have been seen, before B's COMMIT began. Then A
--   had drawn its number before B drew one, so A's is smaller. And whoever sees B's rows sees
--   A's too, so the relay never meets B without A. So A is appended before B.
--   Two transactions to which neither order applies were committing at the same time; either
--   order is one in which they may have committed.
-- A number may become visible after a larger one, or never (a commit that failed): the relay
-- takes what it sees and waits for no gap.

create table queen.staged (
    id bigint generated always as identity primary key,
    transaction xid8 not null default pg_current_xact_id(),
    queue text not null,
    partition text not null,
    transaction_id text not null,
    trace_id text,
    producer_sub text,
    -- One JSON text in UTF-8; `codec` 0 is the text itself.
    payload bytea not null,
    codec smallint not null default 0,
    -- Null: as soon as the transaction has committed, in the order of commits.
    deliver_at timestamptz,
    staged_at timestamptz not null default clock_timestamp()
) with (
    -- Every row is deleted soon: dead rows at the front of an index are what a round reads
    -- first. Truncation would lock out producers.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_analyze_scale_factor = 0.5,
    autovacuum_analyze_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off,
    toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 2000,
    toast.autovacuum_vacuum_cost_delay = 0,
    toast.vacuum_truncate = off
);

-- It stays for a moment only, and the segment it becomes is compressed.
alter table queen.staged alter column payload set storage external;

create index staged_by_transaction on queen.staged (transaction, id) where deliver_at is null;
create index staged_by_time on queen.staged (deliver_at, id) where deliver_at is not null;
create index staged_by_queue on queen.staged (queue, deliver_at, id) where deliver_at is not null;
create index staged_by_name on queen.staged (queue, transaction_id) where deliver_at is not null;

-- The numbers that transactions drew when they committed. A row lives until the last row of
-- its transaction that waits for nothing else has been appended.
create table queen.staged_commits (
    seq bigint generated always as identity primary key,
    transaction xid8 not null unique
) with (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- What was staged around `queen.push` and cannot be a message, with the reason. It waits for
-- a person; nothing else waits for it.
create table queen.staged_refused (
    id bigint primary key,
    queue text not null,
    partition text not null,
    transaction_id text not null,
    trace_id text,
    producer_sub text,
    payload bytea not null,
    codec smallint not null,
    reason text not null,
    refused_at timestamptz not null default clock_timestamp()
);

-- The trigger needs a function to point to; its body is in functions/take_place.sql.
create function queen.take_place() returns trigger language plpgsql as
$$ begin return null; end $$;

-- What is due later needs no number and wakes nobody: the relay looks every second. The
-- condition is evaluated at the insert, the function runs at the commit.
create constraint trigger staged_takes_place
    after insert on queen.staged
    deferrable initially deferred
    for each row
    when (new.deliver_at is null or new.deliver_at < clock_timestamp() + interval '2 seconds')
    execute function queen.take_place();
