-- Lets one message of a shared group be done, whoever holds it and whether or not it was handed out;
-- returns how often it was said to have failed, or null when it is done already.
create or replace function queen.set_aside_shared(
    p_partition bigint, p_group integer, p_offset bigint
) returns integer
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    c cursors%rowtype;
    s shared_spans%rowtype;
    v_at integer;
begin
    select k.* into c from cursors k
     where k.partition_id = p_partition and k.group_id = p_group for no key update;
    if c.handed is null or p_offset < c.committed then
        return null;
    end if;
    if p_offset >= c.handed then
        -- What lies before it and was not handed out is a span that is due.
        if p_offset > c.handed then
            insert into shared_spans (partition_id, group_id, first_offset, end_offset, due_at,
                                      attempts)
            values (p_partition, p_group, c.handed, p_offset, clock_timestamp(), 0);
        end if;
        update cursors k
           set handed = p_offset + 1, in_flight = k.in_flight + p_offset - c.handed
         where k.partition_id = p_partition and k.group_id = p_group;
        perform queen.advance_shared(p_partition, p_group, 0, '');
        return 0;
    end if;
    select w.* into s from shared_spans w
     where w.partition_id = p_partition and w.group_id = p_group
       and w.first_offset between c.committed and p_offset and w.end_offset > p_offset
       and queen.bits_within(w.acked, w.failed, p_offset - w.first_offset,
                             p_offset - w.first_offset + 1) is null
     limit 1;
    if not found then
        return null;
    end if;
    v_at := p_offset - s.first_offset;
    s.acked := queen.bits_within(
        s.acked, set_bit(decode(repeat('00', v_at / 8 + 1), 'hex'), v_at, 1),
        0, s.end_offset - s.first_offset);
    if queen.left_in(s) = 0 then
        delete from shared_spans w
         where w.partition_id = p_partition and w.group_id = p_group
           and w.first_offset = s.first_offset and w.id = s.id;
    else
        update shared_spans w set acked = s.acked
         where w.partition_id = p_partition and w.group_id = p_group
           and w.first_offset = s.first_offset and w.id = s.id;
    end if;
    perform queen.advance_shared(p_partition, p_group, 1, '');
    return s.told;
end
$$;
