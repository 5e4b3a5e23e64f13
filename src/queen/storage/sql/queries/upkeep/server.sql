-- name: notify :one
-- Tell other servers what was committed, if there are any or if it matters ($3); return whether
-- it was told. Losing it costs latency, never a message, so it waits for no disk.
with others as materialized (
    select $3::boolean or exists (
        select from queen.servers
        where id is distinct from $2::integer
          and seen_at > clock_timestamp() - interval '30 seconds') as are_there
)
select coalesce((
    select set_config('synchronous_commit', 'off', true) is not null
       and pg_notify('queen_log', $1) is not null
    from others where are_there), false)

-- name: now :one
select clock_timestamp()

-- name: durability :many
-- The settings that decide whether a confirmed commit survives a crash.
select name, setting from pg_settings
where name in ('fsync', 'synchronous_commit', 'full_page_writes')

-- name: try_job :one
-- Take the right to run a job for the length of this transaction; false when another has it.
select pg_try_advisory_xact_lock(7002, hashtext($1))

-- name: wait_for_job :one
-- The same, and wait while another has it. Only for transactions that hold nothing else yet.
select pg_advisory_xact_lock(7002, hashtext($1)) is not null
