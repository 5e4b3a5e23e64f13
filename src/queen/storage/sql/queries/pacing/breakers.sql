-- name: open_breakers :many
-- Which of these groups are held back by their breaker, and for how long until one message may be
-- tried; 0 says that it may now.
select b.group_id,
       greatest(0, case
           when queen.holds_lease(b.group_id, b.probe_partition, b.probe_lease) then 1000
           when b.probe_partition is null and b.probe_claim_until > clock_timestamp() then 1000
           else queen.ms_until(b.probe_at, clock_timestamp()) end) as wait_ms
from queen.group_breakers b
where b.group_id = any ($1::integer[]) and b.opened_at is not null

-- name: take_probe :maybe once
-- Let one server claim the message that is tried, for a lease that it names; nobody waits for it.
update queen.group_breakers b
set probe_lease = $2, probe_partition = null,
    probe_claim_until = clock_timestamp() + interval '5 seconds'
where b.group_id = (select k.group_id from queen.group_breakers k where k.group_id = $1
                    for no key update skip locked)
  and b.opened_at is not null and b.probe_at <= clock_timestamp()
  and not queen.holds_lease(b.group_id, b.probe_partition, b.probe_lease)
  and (b.probe_partition is not null or b.probe_claim_until is null
       or b.probe_claim_until <= clock_timestamp())
returning b.group_id

-- name: hold_probe :exec again
-- Note where the message is that is tried, or (null) that there was none.
update queen.group_breakers b
set probe_partition = $3, probe_claim_until = null,
    probe_lease = case when $3::bigint is null then null else b.probe_lease end
where b.group_id = $1 and b.probe_lease = $2

-- name: ensure_breakers :exec again
insert into queen.group_breakers (group_id)
select g.id from queen.groups g where g.id = any ($1::integer[])
on conflict do nothing

-- name: lock_breakers :many
-- The breakers of groups, locked in order: before any cursor.
select b.group_id, b.outcomes, b.counted, b.opened_at is not null as is_open, b.probe_lease
from queen.group_breakers b where b.group_id = any ($1::integer[])
order by b.group_id for no key update

-- name: store_breakers :exec once
-- Write breakers back that `lock_breakers` has locked in the same transaction. What has turned
-- says so: one that has opened, or whose probe has failed, waits for its next probe.
update queen.group_breakers b
set outcomes = w.outcomes, counted = w.counted, probe_lease = w.probe_lease,
    opened_at = case when not w.is_open then null
                     else coalesce(b.opened_at, clock_timestamp()) end,
    probe_at = case when w.pause_ms is null then b.probe_at
                    else clock_timestamp() + w.pause_ms * interval '1 millisecond' end,
    probe_claim_until = case when w.probe_lease is null then null else b.probe_claim_until end
from unnest($1::integer[], $2::bytea[], $3::integer[], $4::boolean[], $5::uuid[], $6::bigint[])
     w (group_id, outcomes, counted, is_open, probe_lease, pause_ms)
where b.group_id = w.group_id

-- name: close_breakers :exec again
-- Serve groups again, whatever became of their last messages.
delete from queen.group_breakers where group_id = any ($1::integer[])

-- name: list_open_breakers :many
-- The groups that their breaker holds back, the first that opened first.
select q.name as queue, g.name as group_name, b.opened_at, b.probe_at
from queen.group_breakers b
join queen.groups g on g.id = b.group_id
join queen.queues q on q.id = g.queue_id
where b.opened_at is not null and ($1::text[] is null or q.namespace = any ($1))
order by b.opened_at, b.group_id
limit $2
