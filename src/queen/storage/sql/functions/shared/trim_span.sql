-- A span of a shared group from an offset on, without what is done or was given back at its two
-- ends; with nothing left it begins where it ends.
create or replace function queen.trim_span(s queen.shared_spans, p_from bigint)
returns queen.shared_spans
language plpgsql immutable
set search_path = queen, pg_temp
as $$
declare
    v_first bigint := greatest(s.first_offset, least(p_from, s.end_offset));
    v_bits bytea := queen.bits_within(
        s.acked, s.failed, v_first - s.first_offset, s.end_offset - s.first_offset);
    v_low bigint := 0;
    v_high bigint := s.end_offset - v_first;
begin
    if v_bits is not null then
        while v_low < v_high and get_bit(v_bits, v_low) = 1 loop
            v_low := v_low + 1;
        end loop;
        while v_high > v_low and get_bit(v_bits, v_high - 1) = 1 loop
            v_high := v_high - 1;
        end loop;
    end if;
    s.first_offset := v_first + v_low;
    s.end_offset := v_first + v_high;
    s.acked := queen.bits_within(v_bits, null, v_low, v_high);
    s.failed := null;
    return s;
end
$$;
