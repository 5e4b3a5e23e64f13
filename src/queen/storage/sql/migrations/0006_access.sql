-- Who may come in, and what they have changed.

-- Tokens that the broker itself has given out. The secret is not here, only its hash: 256
-- random bits need no slow one. Rows are never deleted, a token that is over is `revoked_at`
-- or past `expires_at`.
create table queen.api_tokens (
    id text primary key,
    name text not null,
    hash bytea not null,
    role text not null check (role in ('admin', 'read-write', 'read-only')),
    -- The only namespaces its bearer may see; null means all.
    namespaces text[],
    created_at timestamptz not null default clock_timestamp(),
    created_by text not null,
    expires_at timestamptz,
    revoked_at timestamptz,
    -- To within a minute or two.
    last_used_at timestamptz,
    -- Servers ask for what has changed since they last asked.
    changed_at timestamptz not null default clock_timestamp()
);
create index api_tokens_by_change on queen.api_tokens (changed_at);

-- Administrative acts, one row each.
create table queen.audit (
    id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    actor text not null,
    -- Which token it was: `token <id>`, `jwt`, or empty.
    credential text not null,
    address text not null,
    act text not null,
    target text not null,
    outcome text not null,
    -- One JSON object.
    detail text not null
);

create function queen.refuse_change() returns trigger language plpgsql as $$
begin
    raise exception 'queen.audit is append-only';
end
$$;

create trigger audit_is_append_only before update or delete or truncate on queen.audit
    for each statement execute function queen.refuse_change();
