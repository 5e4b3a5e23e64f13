-- The stretches of a segment, in order: itself, when it was never merged. Bytes are shared out by
-- the count of messages.
--
-- No `set` clause: the planner puts the body in place of the call.
create or replace function queen.stretches_of(
    p_partition bigint, p_base bigint, p_end bigint, p_at timestamptz, p_codec smallint,
    p_bytes integer
) returns table (base_offset bigint, end_offset bigint, created_at timestamptz, bytes integer)
language sql stable
as $$
    select p_base, p_end, p_at, p_bytes where p_codec < 16
     union all
    select p_base + u.start, p_base + u.stop, u.at,
           (p_bytes::bigint * (u.stop - u.start) / (p_end - p_base))::integer
      from (
        select lag(w.stop, 1, 0) over (order by w.n) as start, w.stop, w.at
          from queen.merged_segments m,
               unnest(m.stretch_ends, m.stretch_times) with ordinality w (stop, at, n)
         where p_codec >= 16 and m.partition_id = p_partition and m.base_offset = p_base
      ) u
$$;
