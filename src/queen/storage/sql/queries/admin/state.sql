-- name: read_state :many
select key, value from queen.system_state

-- name: write_state :exec again
insert into queen.system_state (key, value) values ($1, $2::jsonb)
on conflict (key) do update set value = excluded.value, updated_at = clock_timestamp()
