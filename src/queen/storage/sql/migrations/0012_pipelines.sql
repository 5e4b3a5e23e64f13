-- Pipelines: what Spark computes, and what it last said of that.
--
-- A definition is JSON that the server has checked; its fingerprint says whether two are the
-- same. A run reports every few seconds; whoever reports last is the run that counts.

create table queen.pipelines (
    id           integer generated always as identity primary key,
    name         text not null unique,
    namespace    text not null default '',
    definition   text not null,
    fingerprint  text not null,
    version      integer not null default 1,
    created_at   timestamptz not null default clock_timestamp(),
    updated_at   timestamptz not null default clock_timestamp(),
    -- The run that reported last.
    run_id       text,
    started_at   timestamptz,
    reported_at  timestamptz,
    progress     text,
    -- The run that is to stop.
    stop_run_id  text
) with (fillfactor = 70);
