-- Why a payload cannot be taken, or null; the limits of core/payload.py.
--
-- A text that is nested too deeply has more brackets than levels, so most payloads are not
-- looked into. Level 128 of a path is inside 128 brackets; another one there is too many.
create or replace function queen.reason_against_payload(p_payload jsonb) returns text
language sql immutable parallel safe
as $$
    select case
        when p_payload is null then 'payload is null; a JSON null is ''null''::jsonb'
        when octet_length(p_payload::text) > 16777216 then 'payload is larger than 16777216 bytes'
        when length(p_payload::text) - length(translate(p_payload::text, '[{', '')) > 128
         and jsonb_path_exists(
                p_payload,
                'strict $.**{128 to last} ? (@.type() == "object" || @.type() == "array")')
        then 'payload is nested deeper than 128 levels'
    end
$$;
