-- Returns the id of a group of a stream, and makes it when there is none. Null: no such stream.
create or replace function queen.open_stream_group(
    p_stream integer, p_name text, p_starts_at timestamptz
) returns integer
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_group integer;
begin
    select id into v_group from stream_groups where stream_id = p_stream and name = p_name;
    if v_group is null and exists (select 1 from streams where id = p_stream) then
        insert into stream_groups (stream_id, name) values (p_stream, p_name)
            on conflict (stream_id, name) do nothing
        returning id into v_group;
        if v_group is null then
            select id into v_group from stream_groups where stream_id = p_stream and name = p_name;
        else
            perform queen.seek_stream(v_group, coalesce(p_starts_at, '-infinity'));
        end if;
    end if;
    return v_group;
end
$$;
