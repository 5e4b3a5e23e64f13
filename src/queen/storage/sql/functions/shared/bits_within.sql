-- The bits that are set in either of two strings, from one bit up to another, counted from the
-- first of them; null when there is none.
create or replace function queen.bits_within(
    p_bits bytea, p_others bytea, p_from bigint, p_upto bigint
) returns bytea
language plpgsql immutable
set search_path = queen, pg_temp
as $$
declare
    v_bits integer := coalesce(length(p_bits), 0) * 8;
    v_others integer := coalesce(length(p_others), 0) * 8;
    v_within bytea;
begin
    for i in p_from .. least(p_upto, greatest(v_bits, v_others)) - 1 loop
        if (i < v_bits and get_bit(p_bits, i) = 1) or (i < v_others and get_bit(p_others, i) = 1)
        then
            v_within := coalesce(v_within, decode(repeat('00', ((p_upto - p_from + 7) / 8)::integer), 'hex'));
            v_within := set_bit(v_within, i - p_from, 1);
        end if;
    end loop;
    return v_within;
end
$$;
