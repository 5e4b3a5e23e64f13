-- What the server has to know of the stretches of a merged segment: the binary forms of their ends
-- and of their times, one behind the other. Numbers in bulk are read from bytes at once.
create or replace function queen.stretch_table(p_partition bigint, p_base bigint) returns bytea
language sql stable
set search_path = queen, pg_temp
as $$
    select array_send(m.stretch_ends) || array_send(m.stretch_times)
      from merged_segments m where m.partition_id = p_partition and m.base_offset = p_base
$$;
