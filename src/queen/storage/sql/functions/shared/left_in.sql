-- How many messages of a span of a shared group are not done.
create or replace function queen.left_in(s queen.shared_spans) returns bigint
language sql immutable
as $$
    select s.end_offset - s.first_offset
           - coalesce(bit_count(s.acked), 0) - coalesce(bit_count(s.failed), 0)
$$;
