-- Pushes one message in the caller's transaction; returns its transaction id.
--
-- The message appears if and only if the transaction commits. These functions run as the
-- owner of the schema: a role needs `usage` on the schema and `execute` on them, no more.
create or replace function queen.push(
    queue text,
    partition text,
    payload jsonb,
    transaction_id text default null,
    trace_id text default null,
    deliver_at timestamptz default null
) returns text
language plpgsql security definer
set search_path = queen, pg_temp
as $$
declare
    v_id text := coalesce(push.transaction_id, gen_random_uuid()::text);
begin
    perform queen.stage(
        push.queue, coalesce(push.partition, 'Default'), array[push.payload], array[v_id],
        push.trace_id, push.deliver_at, null);
    return v_id;
end
$$;

-- The same with headers, a JSON object of texts. Another function beside the first, which keeps its
-- signature: others have granted rights on it.
create or replace function queen.push(
    queue text,
    partition text,
    payload jsonb,
    headers jsonb,
    transaction_id text default null,
    trace_id text default null,
    deliver_at timestamptz default null
) returns text
language plpgsql security definer
set search_path = queen, pg_temp
as $$
declare
    v_id text := coalesce(push.transaction_id, gen_random_uuid()::text);
begin
    perform queen.stage(
        push.queue, coalesce(push.partition, 'Default'), array[push.payload], array[v_id],
        push.trace_id, push.deliver_at, push.headers);
    return v_id;
end
$$;

-- The same for the partition `Default`.
create or replace function queen.push(queue text, payload jsonb) returns text
language sql security definer
set search_path = queen, pg_temp
as $$ select queen.push(push.queue, 'Default', push.payload) $$;

revoke execute on function queen.push(text, text, jsonb, text, text, timestamptz) from public;
revoke execute on function queen.push(text, text, jsonb, jsonb, text, text, timestamptz) from public;
revoke execute on function queen.push(text, jsonb) from public;
