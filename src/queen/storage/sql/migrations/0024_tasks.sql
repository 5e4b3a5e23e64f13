-- Tasks: what became of jobs, which job has a key, and when schedules come due.
--
-- A job is an ordinary message, and where it stands is what the log says of that message. Only
-- what the log cannot say is here. Nothing refers to `queues`: a foreign key would lock the row
-- of its queue with every result. What an older server leaves behind when it deletes a queue
-- expires.

-- What a job has returned, or why it was given up; written with the ack that decided it.
create table queen.job_results (
    queue text not null,
    job_id text not null,
    -- done or failed
    state text not null,
    -- One JSON text; `codec` says whether it is encrypted. Null when there is none.
    result bytea,
    codec smallint not null default 0,
    error text,
    finished_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null,
    primary key (queue, job_id)
) with (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    vacuum_truncate = off
);

create index job_results_by_expiry on queen.job_results (expires_at);

-- The job that has a key. Whether it is still to be done is what the log says; a row whose job
-- is done is as good as none.
create table queen.job_keys (
    queue text not null,
    key text not null,
    job_id text not null,
    partition text not null,
    -- For whom it counts as done.
    group_name text not null,
    -- The key is kept at least so long, even when the job is done.
    held_until timestamptz not null,
    -- When somebody last saw that the job is still to be done.
    checked_at timestamptz not null default clock_timestamp(),
    primary key (queue, key)
) with (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    vacuum_truncate = off
);

create index job_keys_by_check on queen.job_keys (checked_at);

-- What is pushed again and again, by the calendar of a time zone.
create table queen.schedules (
    id integer generated always as identity primary key,
    name text not null unique,
    queue text not null,
    partition text not null,
    cron text not null,
    zone text not null,
    payload bytea not null,
    codec smallint not null default 0,
    -- none, last or all: what happens to ticks that nobody was there for.
    catch_up text not null,
    catch_up_limit integer not null,
    is_paused boolean not null default false,
    -- The next tick, by the calendar.
    next_at timestamptz not null,
    -- When it is due, by the clock. The same, unless a test has let time pass.
    due_at timestamptz not null,
    last_at timestamptz,
    ticks bigint not null default 0,
    missed bigint not null default 0,
    -- A server that could not do it leaves it to others until then.
    held_until timestamptz not null default '-infinity',
    producer_sub text,
    created_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz not null default clock_timestamp()
) with (fillfactor = 70);

create index schedules_by_due on queen.schedules (due_at) where not is_paused;
