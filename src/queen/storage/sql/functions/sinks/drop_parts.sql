-- Removes staged parts with all they hold.
create or replace function queen.drop_parts(p_parts bigint[]) returns void
language sql
set search_path = queen, pg_temp
as $$
    delete from segments where partition_id = any (select -id from unnest(p_parts) id);
    delete from sink_pieces where part_id = any (p_parts);
    delete from sink_parts where id = any (p_parts);
$$;
