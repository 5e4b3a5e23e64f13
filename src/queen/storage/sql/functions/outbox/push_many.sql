-- Pushes messages to one partition, in order; returns their transaction ids.
create or replace function queen.push_many(queue text, partition text, payloads jsonb[])
returns text[]
language sql security definer
set search_path = queen, pg_temp
as $$ select queen.push_many(push_many.queue, push_many.partition, push_many.payloads, null) $$;

-- The same with headers, which all of them get.
create or replace function queen.push_many(
    queue text,
    partition text,
    payloads jsonb[],
    headers jsonb
) returns text[]
language plpgsql security definer
set search_path = queen, pg_temp
as $$
declare
    v_ids text[];
begin
    select coalesce(array_agg(gen_random_uuid()::text), '{}') into v_ids
      from unnest(push_many.payloads);
    perform queen.stage(
        push_many.queue, coalesce(push_many.partition, 'Default'), push_many.payloads, v_ids,
        null, null, push_many.headers);
    return v_ids;
end
$$;

revoke execute on function queen.push_many(text, text, jsonb[]) from public;
revoke execute on function queen.push_many(text, text, jsonb[], jsonb) from public;
