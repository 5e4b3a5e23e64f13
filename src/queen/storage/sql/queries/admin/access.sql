-- name: create_token :maybe again
-- Store the hash of a new token; sent twice it is one token, and another's id stays the other's.
insert into queen.api_tokens (id, name, hash, role, namespaces, created_by, expires_at)
values ($1, $2, $3, $4, $5::text[], $6, clock_timestamp() + $7::bigint * interval '1 second')
on conflict (id) do update set hash = excluded.hash where api_tokens.hash = excluded.hash
returning id

-- name: tokens_since :many
-- Tokens that were made or revoked since a transaction; how long each has left is told, not
-- when it ends, so that the servers' clocks do not matter. One row more, without an id, says
-- where to go on: all transactions before that one are over, and what they did is in here.
with changed as (
    select id, name, hash, role, namespaces, revoked_at is not null as revoked,
           extract(epoch from expires_at - clock_timestamp())::float8 as left_s, changed_in
    from queen.api_tokens
    where changed_in >= $1::bigint::text::xid8
)
select id, name, hash, role, namespaces, revoked, left_s, changed_in::text::bigint as since
from changed
union all
select null, null, null, null, null, null, null,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint

-- name: list_tokens :many
-- A page of tokens, newest first; $1 limits it to those of some namespaces, null does not.
select id, name, role, namespaces, created_at, created_by, expires_at, revoked_at, last_used_at
from queen.api_tokens
where $1::text[] is null or namespaces <@ $1::text[]
order by created_at desc, id
limit $2 offset $3

-- name: revoke_token :maybe again
-- End a token; one that is over already keeps its time.
update queen.api_tokens
set revoked_at = coalesce(revoked_at, clock_timestamp()), changed_at = clock_timestamp()
where id = $1 and ($2::text[] is null or namespaces <@ $2::text[])
returning id

-- name: touch_tokens :exec again
update queen.api_tokens set last_used_at = clock_timestamp() where id = any ($1::text[])

-- name: has_admin_token :one
-- Whether anybody could come in who may do everything.
select exists (
    select from queen.api_tokens
    where role = 'admin' and namespaces is null and revoked_at is null
      and (expires_at is null or expires_at > clock_timestamp())
)

-- name: lock_first_token :exec
-- Servers that start at the same moment make one first token, not one each.
select pg_advisory_xact_lock(7003)

-- name: write_audit :exec once
insert into queen.audit (actor, credential, address, act, target, outcome, detail)
values ($1, $2, $3, $4, $5, $6, $7)

-- name: audit_page :many
-- A page of the trail, newest first, of what came before an entry.
select id, at, actor, credential, address, act, target, outcome, detail
from queen.audit
where id < $1 and ($3 = '' or actor = $3) and ($4 = '' or act = $4)
order by id desc
limit $2
