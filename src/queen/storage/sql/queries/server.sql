-- name: notify :exec
-- Tell other servers what was committed. Losing it costs latency, never a message.
select pg_notify('queen_log', $1)

-- name: now :one
select clock_timestamp()

-- name: durability :many
-- The settings that decide whether a confirmed commit survives a crash.
select name, setting from pg_settings
where name in ('fsync', 'synchronous_commit', 'full_page_writes')
