-- name: notify :exec
-- Tell other servers what was committed. Losing it costs latency, never a message.
select pg_notify('queen_log', $1)

-- name: now :one
select clock_timestamp()

-- name: durability :many
-- The settings that decide whether a confirmed commit survives a crash.
select name, setting from pg_settings
where name in ('fsync', 'synchronous_commit', 'full_page_writes')

-- name: try_job :one
-- Take the right to run a job for the length of this transaction; false when another has it.
select pg_try_advisory_xact_lock(7002, hashtext($1))
