-- Opens as many windows of each key of a group as may be in flight together, the oldest first;
-- of one key, or (null) of all. The caller holds the lock of the group exclusively.
--
-- p_strictly   close what is above the limit too: the newest leases end, and do not count
create or replace function queen.balance_work(
    p_group integer, p_key text, p_in_flight integer, p_strictly boolean
) returns void
language plpgsql
set search_path = queen, pg_temp
as $$
begin
    if p_strictly then
        update stream_work k
           set state = 0, lease_id = null,
               available_at = case when k.lease_id is null then k.available_at
                                   else '-infinity' end,
               attempts = k.attempts - case when k.lease_id is not null
                                             and k.available_at > clock_timestamp()
                                            then 1 else 0 end
          from (
            select w.window_id, row_number() over (partition by w.key order by w.window_id) as n
              from stream_work w
             where w.group_id = p_group and w.state = 1 and (p_key is null or w.key = p_key)
          ) o
         where k.group_id = p_group and k.window_id = o.window_id and o.n > p_in_flight;
    end if;
    update stream_work k set state = 1
      from (
        select w.window_id, w.state,
               count(*) filter (where w.state = 1) over (partition by w.key) as open,
               row_number() over (partition by w.key, w.state order by w.window_id) as n
          from stream_work w
         where w.group_id = p_group and w.state < 2 and (p_key is null or w.key = p_key)
      ) o
     where k.group_id = p_group and k.window_id = o.window_id
       and o.state = 0 and o.open + o.n <= p_in_flight;
end
$$;
