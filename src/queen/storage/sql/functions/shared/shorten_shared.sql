-- Leases less of a span of a shared group than was claimed; the rest is for the next pop, and was
-- not delivered.
create or replace function queen.shorten_shared(
    p_partition bigint, p_group integer, p_lease uuid, p_end bigint
) returns void
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    s shared_spans%rowtype;
begin
    perform 1 from cursors k
      where k.partition_id = p_partition and k.group_id = p_group for no key update;
    select w.* into s from shared_spans w
     where w.partition_id = p_partition and w.group_id = p_group and w.lease_id = p_lease
       and w.first_offset < p_end and w.end_offset > p_end;
    if not found then
        return;
    end if;
    update shared_spans w
       set end_offset = p_end, is_alone = p_end = s.first_offset + 1,
           acked = queen.bits_within(s.acked, null, 0, p_end - s.first_offset),
           failed = queen.bits_within(s.failed, null, 0, p_end - s.first_offset)
     where w.partition_id = p_partition and w.group_id = p_group
       and w.first_offset = s.first_offset and w.id = s.id;
    s := queen.trim_span(s, p_end);
    if s.first_offset < s.end_offset then
        insert into shared_spans (partition_id, group_id, first_offset, end_offset, due_at,
                                  attempts, told, acked)
        values (s.partition_id, s.group_id, s.first_offset, s.end_offset, clock_timestamp(),
                s.attempts - 1, s.told, s.acked);
    end if;
end
$$;
