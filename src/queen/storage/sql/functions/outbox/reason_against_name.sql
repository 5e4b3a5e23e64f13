-- Why a name cannot name a queue or a partition, or null; the rules of core/names.py.
--
-- The characters are REFUSED_CHARACTERS there; a text has neither NUL nor lone surrogates.
create or replace function queen.reason_against_name(p_kind text, p_name text) returns text
language sql immutable parallel safe
as $$
    select case
        when p_name is null or p_name = '' then p_kind || ' is empty'
        when octet_length(p_name) > 255 then p_kind || ' is longer than 255 bytes'
        when p_name collate "C" ~ (
            '[\u0001-\u001f\u007f-\u00a0\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891'
            '\u08e2\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u2064\u2066-\u206f\u3000'
            '\ue000-\uf8ff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U00013438'
            '\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f'
            '\U000f0000-\U0010ffff]')
        then p_kind || ' has a character that is not printable'
    end
$$;
