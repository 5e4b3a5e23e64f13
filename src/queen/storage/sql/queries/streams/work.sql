-- name: open_stream_group :one again
select queen.open_stream_group($1, $2, $3)

-- name: stream_group :maybe
select id from queen.stream_groups where stream_id = $1 and name = $2

-- name: claim_window :one once
select * from queen.claim_window($1, $2, $3, $4, $5)

-- name: leased_window :maybe
-- The window that a live lease holds, and whose it is.
select w.id, w.key, w.starts_at, w.ends_at, w.partitions, w.from_offsets, w.to_offsets,
       w.messages, w.bytes, s.name as stream, s.namespace, g.name as group_name
from queen.stream_work k
join queen.stream_groups g on g.id = k.group_id
join queen.streams s on s.id = g.stream_id
join queen.stream_windows w on w.stream_id = g.stream_id and w.id = k.window_id
where k.group_id = $1 and k.window_id = $2 and k.lease_id = $3
  and k.available_at > clock_timestamp()

-- name: stream_of_group :maybe
select s.id, s.name, s.namespace, s.definition, g.name as group_name
from queen.stream_groups g join queen.streams s on s.id = g.stream_id where g.id = $1

-- name: settle_window :one again
select queen.settle_window($1, $2, $3, $4, $5, $6, $7)

-- name: return_window :exec again
-- Take a grant back that nobody received: it does not count.
update queen.stream_work
set lease_id = null, available_at = '-infinity', attempts = attempts - 1
where group_id = $1 and window_id = $2 and lease_id = $3

-- name: release_window :maybe once
-- Give a leased window back without fault: it comes again at once and does not count.
update queen.stream_work
set lease_id = null, available_at = '-infinity', attempts = attempts - 1
where group_id = $1 and window_id = $2 and lease_id = $3 and available_at > clock_timestamp()
returning true

-- name: renew_window :maybe again
update queen.stream_work k
set available_at = clock_timestamp() + $4::bigint * interval '1 millisecond'
where k.group_id = $1 and k.window_id = $2 and k.lease_id = $3
  and k.available_at > clock_timestamp()
returning k.available_at

-- name: seek_stream :one once
select queen.seek_stream($1, $2)

-- name: hold_retention_of_group :exec again
-- What windows hold that a group of a stream gets again is not cleaned up meanwhile.
select queen.hold_retention(array(
    select r.queue_id from queen.stream_groups g
    join queen.stream_sources r on r.stream_id = g.stream_id where g.id = $1))

-- name: lock_stream_group :exec
select pg_advisory_xact_lock(7003, $1)

-- name: retry_dead_windows :one once
-- Give windows that were given up another full set of tries, each when its key has room.
with again as (
    delete from queen.stream_dead d using queen.stream_groups g
     where g.id = d.group_id and d.group_id = $1 and ($2::text is null or exists (
        select 1 from queen.stream_windows w
         where w.stream_id = g.stream_id and w.id = d.window_id and w.key = $2
           and w.starts_at = $3 and w.ends_at = $4 and w.id = coalesce($5, w.id)))
    returning d.window_id, g.stream_id
), work as (
    insert into queen.stream_work (group_id, window_id, key, state)
    select $1, a.window_id, w.key, 0
    from again a join queen.stream_windows w on w.stream_id = a.stream_id and w.id = a.window_id
    on conflict (group_id, window_id) do nothing
)
select count(*) from again

-- name: balance_group :exec once
select queen.balance_work($1, $2, (s.definition ->> 'maxInFlight')::integer, false)
from queen.stream_groups g join queen.streams s on s.id = g.stream_id where g.id = $1
