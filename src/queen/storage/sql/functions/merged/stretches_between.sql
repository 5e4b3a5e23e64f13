-- The stretches of a queue that were written in [p_from, p_to), in any order: segments that were
-- never merged, and of merged ones what lies in between. None of these spans more than ten
-- minutes, so what began before the range began is near.
--
-- No `set` clause: the planner puts the body in place of the call.
create or replace function queen.stretches_between(
    p_queue integer, p_from timestamptz, p_to timestamptz
) returns table (
    partition_id bigint, base_offset bigint, end_offset bigint, created_at timestamptz,
    bytes integer, segment_base bigint
)
language sql stable
as $$
    select s.partition_id, s.base_offset, s.end_offset, s.created_at, octet_length(s.body), s.base_offset
      from queen.segments s
     where s.queue_id = p_queue and s.created_at >= p_from and s.created_at < p_to
       and s.codec < 16
     union all
    select s.partition_id, u.base_offset, u.end_offset, u.created_at, u.bytes, s.base_offset
      from (
        select m.partition_id, m.base_offset from queen.merged_segments m
         where m.queue_id = p_queue and m.first_at >= p_from and m.first_at < p_to
         union all
        select m.partition_id, m.base_offset from queen.merged_segments m
         where m.queue_id = p_queue and m.last_at >= p_from and m.first_at < p_from
           and m.last_at < p_from + interval '10 minutes'
      ) w
      join queen.segments s on s.partition_id = w.partition_id and s.base_offset = w.base_offset
     cross join lateral queen.stretches_of(s.partition_id, s.base_offset, s.end_offset, s.created_at,
                                           s.codec, octet_length(s.body)) u
     where u.created_at >= p_from and u.created_at < p_to
$$;
