-- The keys that a stream has had windows for; a global stream has one from the beginning.
--
-- Jumps from key to key through the index: it costs what there are keys, not windows.
create or replace function queen.stream_keys(p_stream integer, p_partitioned boolean)
returns table (key text)
language sql stable
set search_path = queen, pg_temp
as $$
    with recursive known (key) as (
        (select w.key from stream_windows w
          where p_partitioned and w.stream_id = p_stream order by w.key limit 1)
         union all
        select (select w.key from stream_windows w
                 where w.stream_id = p_stream and w.key > known.key order by w.key limit 1)
          from known where known.key is not null
    )
    select k.key from known k where k.key is not null
     union all
    select '__GLOBAL__' where not p_partitioned
$$;
