-- Removes partitions that hold nothing and were not written to since an instant; looks at the
-- next p_limit partitions behind an id and answers where it stopped (null: at the end), and how
-- many it removed from which queues.
--
-- A partition that somebody locks just now is in use. One that comes back gets a new id.
create or replace function queen.drop_idle_partitions(
    p_after bigint, p_idle_since timestamptz, p_limit integer
) returns table (queue_ids integer[], dropped bigint[], looked_until bigint)
language plpgsql
set search_path = queen, pg_temp
as $$
declare
    v_idle bigint[];
    v_last bigint;
    v_looked integer;
begin
    select max(w.id), count(*), array_agg(w.id) filter (
               where w.tail = w.head and greatest(w.head_at, w.created_at) < p_idle_since
                 and w.name <> 'Default')
      into v_last, v_looked, v_idle
      from (
        select p.id, p.name, p.head, p.tail, p.head_at, p.created_at
          from partitions p where p.id > p_after order by p.id limit p_limit
      ) w;
    with idle as (
        select p.id from partitions p
         where p.id = any (v_idle) and p.tail = p.head
           and not exists (select 1 from dead_letters d where d.partition_id = p.id)
           and not exists (select 1 from segments s where s.partition_id = p.id)
         order by p.id for update skip locked
    ), unread as (
        delete from cursors c using idle where c.partition_id = idle.id
    ), unread_spans as (
        delete from shared_spans s using idle where s.partition_id = idle.id
    ), gone as (
        delete from partitions p using idle where p.id = idle.id returning p.queue_id
    )
    select array_agg(w.queue_id), array_agg(w.count) into queue_ids, dropped
      from (select gone.queue_id, count(*) from gone group by gone.queue_id) w;
    looked_until := case when v_looked = p_limit then v_last end;
    return next;
end
$$;
