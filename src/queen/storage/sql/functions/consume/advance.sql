-- Moves a cursor to an offset and then past everything that was done out of order behind it.
-- The bits of `acked` count from `committed`, so they move along.
create or replace function queen.advance(c queen.cursors, p_to bigint) returns queen.cursors
language plpgsql immutable
set search_path = queen, pg_temp
as $$
declare
    v_bits integer;
    v_from integer;
    v_acked bytea;
begin
    if c.acked is null then
        c.committed := p_to;
        return c;
    end if;
    v_bits := length(c.acked) * 8;
    v_from := least(p_to - c.committed, v_bits);
    c.committed := p_to;
    while v_from < v_bits and get_bit(c.acked, v_from) = 1 loop
        v_from := v_from + 1;
        c.committed := c.committed + 1;
    end loop;
    for i in v_from .. v_bits - 1 loop
        if get_bit(c.acked, i) = 1 then
            v_acked := coalesce(v_acked, decode(repeat('00', (v_bits - v_from + 7) / 8), 'hex'));
            v_acked := set_bit(v_acked, i - v_from, 1);
        end if;
    end loop;
    c.acked := v_acked;
    return c;
end
$$;
