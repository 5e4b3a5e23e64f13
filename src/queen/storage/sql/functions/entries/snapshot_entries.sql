-- Keeps the sum of a stream's journal up to a version, and removes the records that it is the sum
-- of and the messages that the stream no longer has.
--
-- p_floor      the stream has no entry before this offset of its partition
create or replace function queen.snapshot_entries(
    p_stream bigint, p_version bigint, p_snapshot bytea, p_floor bigint
) returns void
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_partition bigint;
    v_newest timestamptz;
begin
    update entry_streams s set snapshot = p_snapshot, snapshot_version = p_version
     where s.id = p_stream and s.snapshot_version < p_version
    returning s.partition_id into v_partition;
    if not found then
        return;
    end if;
    delete from entry_journal j where j.stream_id = p_stream and j.version <= p_version;

    perform 1 from partitions p where p.id = v_partition for no key update;
    with gone as (
        delete from segments s
         where s.partition_id = v_partition and s.end_offset <= p_floor
        returning s.partition_id, s.base_offset, s.end_offset, s.created_at
    ), merged as (
        delete from merged_segments m using gone
         where m.partition_id = gone.partition_id and m.base_offset = gone.base_offset
        returning m.last_at
    ), tails as (
        update partitions p set tail = greatest(p.tail, w.tail)
          from (select max(end_offset) as tail from gone) w
         where p.id = v_partition and w.tail is not null
    )
    select greatest(max(created_at), (select max(last_at) from merged)) into v_newest from gone;
    update queues q set gone_until = v_newest
      from partitions p
     where p.id = v_partition and q.id = p.queue_id and q.gone_until < v_newest;
end
$$;
