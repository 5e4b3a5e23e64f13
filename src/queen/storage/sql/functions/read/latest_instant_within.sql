-- The latest instant, at most p_to, before which some queues hold no more than so many messages
-- and bytes, each counted from a time of its own; a null is no limit. At least the first
-- instant at which anything was written is taken, so that a reader always gets on.
--
-- Reads little further than the limit: first each queue by itself, page by page in order of time,
-- then what is left of all of them together.
create or replace function queen.latest_instant_within(
    p_queues integer[],
    p_from timestamptz[],
    p_to timestamptz,
    p_messages bigint,
    p_bytes bigint
) returns timestamptz
language plpgsql stable
set search_path = queen, pg_temp
as $$
declare
    v_to timestamptz := p_to;
    v_messages bigint;
    v_bytes bigint;
    v_last timestamptz;
    v_at timestamptz;
    v_partition bigint;
    v_base bigint;
    v_looked integer;
    v_page integer;
    r record;
begin
    for i in 1 .. cardinality(p_queues) loop
        v_messages := 0; v_bytes := 0; v_last := null;
        v_at := p_from[i]; v_partition := -1; v_base := -1;
        <<pages>>
        loop
            v_looked := 0;
            v_page := greatest(100, least(2000, coalesce(p_messages - v_messages, 2000) + 1));
            for r in
                select w.created_at, w.end_offset - w.base_offset as messages, w.bytes,
                       w.partition_id, w.base_offset
                  from queen.stretches_after(
                      p_queues[i], v_at, v_partition, v_base, v_to, v_page) w
            loop
                v_messages := v_messages + r.messages;
                v_bytes := v_bytes + r.bytes;
                if (v_messages > p_messages or v_bytes > p_bytes) and v_last < r.created_at then
                    v_to := r.created_at;
                    exit pages;
                end if;
                v_last := r.created_at;
                v_looked := v_looked + 1;
                v_at := r.created_at; v_partition := r.partition_id; v_base := r.base_offset;
            end loop;
            exit when v_looked < v_page;
        end loop;
    end loop;
    if cardinality(p_queues) = 1 then
        return v_to;
    end if;
    v_messages := 0; v_bytes := 0; v_last := null;
    for r in
        select s.created_at, s.end_offset - s.base_offset as messages, s.bytes
          from unnest(p_queues, p_from) w (id, since)
         cross join lateral queen.stretches_between(w.id, w.since, v_to) s
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
