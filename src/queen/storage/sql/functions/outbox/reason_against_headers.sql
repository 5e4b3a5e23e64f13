-- Why headers cannot be taken, or null; the limits of core/columns/headers.py.
create or replace function queen.reason_against_headers(p_headers jsonb) returns text
language sql immutable parallel safe
as $$
    select case
        when jsonb_typeof(p_headers) <> 'object' then 'headers are not a JSON object of texts'
        else (
            select case
                when count(*) > 64 then format('headers: %s are more than 64', count(*))
                when bool_or(jsonb_typeof(h.value) <> 'string')
                then 'headers are not a JSON object of texts'
                when bool_or(octet_length(h.key) not between 1 and 256)
                then 'a header''s name has not 1 to 256 bytes'
                when bool_or(h.key ~ '[\x01-\x1f\x7f]')
                then 'a header has a control character in its name'
                when bool_or(octet_length(h.value #>> '{}') > 8192)
                then 'a header has a value of more than 8192 bytes'
                when sum(octet_length(h.key) + octet_length(h.value #>> '{}')) > 16384
                then 'headers have more than 16384 bytes'
            end
            from jsonb_each(p_headers) h)
    end
$$;
