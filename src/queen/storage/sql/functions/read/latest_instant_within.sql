-- The latest instant, at most p_to, before which some queues hold no more than so many messages
-- and bytes, each counted from a time of its own; a null is no limit. At least the first
-- instant at which anything was written is taken, so that a reader always gets on.
--
-- Reads no further than the limit: first each queue by itself, in the order of its index, then
-- what is left of all of them together.
create or replace function queen.latest_instant_within(
    p_queues integer[],
    p_from timestamptz[],
    p_to timestamptz,
    p_messages bigint,
    p_bytes bigint
) returns timestamptz
language plpgsql stable
set search_path = queen, pg_temp
-- To sort would mean to read everything there is before the first row is looked at.
set enable_sort = off
set enable_bitmapscan = off
set enable_seqscan = off
as $$
declare
    v_to timestamptz := p_to;
    v_messages bigint;
    v_bytes bigint;
    v_last timestamptz;
    r record;
begin
    for i in 1 .. cardinality(p_queues) loop
        v_messages := 0; v_bytes := 0; v_last := null;
        for r in
            select s.created_at, s.end_offset - s.base_offset as messages,
                   octet_length(s.body) as bytes
              from segments s
             where s.queue_id = p_queues[i] and s.created_at >= p_from[i] and s.created_at < v_to
             order by s.created_at
        loop
            v_messages := v_messages + r.messages;
            v_bytes := v_bytes + r.bytes;
            if (v_messages > p_messages or v_bytes > p_bytes) and v_last < r.created_at then
                v_to := r.created_at;
                exit;
            end if;
            v_last := r.created_at;
        end loop;
    end loop;
    if cardinality(p_queues) = 1 then
        return v_to;
    end if;
    v_messages := 0; v_bytes := 0; v_last := null;
    for r in
        select s.created_at, s.end_offset - s.base_offset as messages,
               octet_length(s.body) as bytes
          from unnest(p_queues, p_from) w (id, since)
          join segments s on s.queue_id = w.id and s.created_at >= w.since and s.created_at < v_to
         order by s.created_at
    loop
        v_messages := v_messages + r.messages;
        v_bytes := v_bytes + r.bytes;
        if (v_messages > p_messages or v_bytes > p_bytes) and v_last < r.created_at then
            return r.created_at;
        end if;
        v_last := r.created_at;
    end loop;
    return v_to;
end
$$;
