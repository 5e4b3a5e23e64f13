-- Writes the windows of a stream that end in (p_from, p_to]; returns how many.
--
-- They are made of slides, which the caller has found (`slides_page`): what one partition got
-- between two boundaries, from p_from - p_size + p_slide on and before p_to. The same one may be
-- there in several parts. Everything before p_to must be sealed, and the caller holds the row of
-- the stream. Windows are not found by counting boundaries, so an empty year costs nothing. With
-- p_empty windows without a message are written too.

-- It looked for the slides itself, in one statement, however many segments there were.
drop function if exists queen.plan_windows(
    integer, boolean, interval, interval, timestamptz, timestamptz, boolean);

create or replace function queen.plan_windows(
    p_stream integer, p_partitioned boolean, p_size interval, p_slide interval,
    p_from timestamptz, p_to timestamptz, p_empty boolean,
    p_partitions bigint[], p_at timestamptz[], p_low bigint[], p_high bigint[],
    p_messages bigint[], p_bytes bigint[]
) returns bigint
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_planned bigint;
begin
    with slides as (
        select * from unnest(p_partitions, p_at, p_low, p_high, p_messages, p_bytes)
                      as w (partition_id, at, low, high, messages, bytes)
    ), cut as (
        select s.partition_id, e.ends_at, min(s.low) as low, max(s.high) as high,
               sum(s.messages) as messages, sum(s.bytes) as bytes
          from slides s
         -- Only tests that move time leave p_from between two boundaries: the rest of that
         -- slide is a window then, and windows that overlap have moved along.
         cross join generate_series(
            greatest(s.at, case when p_size = p_slide
                                then date_bin(p_slide, p_from, timestamptz 'epoch')
                                else p_from end) + p_slide,
            least(s.at + p_size, p_to), p_slide) e (ends_at)
         group by 1, 2
    ), keyed as (
        select case when p_partitioned then p.name else '__GLOBAL__' end as key, c.*
          from cut c join partitions p on p.id = c.partition_id
    ), filled as (
        select k.key, k.ends_at, array_agg(k.partition_id order by k.partition_id) as partitions,
               array_agg(k.low order by k.partition_id) as lows,
               array_agg(k.high order by k.partition_id) as highs,
               sum(k.messages) as messages, sum(k.bytes) as bytes
          from keyed k group by k.key, k.ends_at
    ), empty as (
        select n.key, b as ends_at
          from queen.stream_keys(p_stream, p_partitioned) n
         cross join generate_series(
            date_bin(p_slide, p_from, timestamptz 'epoch') + p_slide, p_to, p_slide) b
         where p_empty and not exists (
            select 1 from filled f where f.key = n.key and f.ends_at = b)
    ), windows as (
        select * from filled
         union all
        select e.key, e.ends_at, '{}', '{}', '{}', 0, 0 from empty e
    ), written as (
        insert into stream_windows
            (stream_id, key, starts_at, ends_at, partitions, from_offsets, to_offsets, messages, bytes)
        select p_stream, w.key, w.ends_at - p_size, w.ends_at, w.partitions, w.lows, w.highs,
               w.messages, w.bytes
          from windows w order by w.ends_at, w.key
        returning 1
    )
    select count(*) into v_planned from written;
    return v_planned;
end
$$;
