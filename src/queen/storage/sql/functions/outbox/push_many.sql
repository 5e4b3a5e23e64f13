-- Pushes messages to one partition, in order; returns their transaction ids.
create or replace function queen.push_many(queue text, partition text, payloads jsonb[])
returns text[]
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
        null, null);
    return v_ids;
end
$$;

revoke execute on function queen.push_many(text, text, jsonb[]) from public;
