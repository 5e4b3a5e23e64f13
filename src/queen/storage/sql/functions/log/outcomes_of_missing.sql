-- What `queen.append` and `queen.publish` answer when not all partitions are there: 2 for those
-- that are missing, 1 for the others. Nothing was written anywhere.
create or replace function queen.outcomes_of_missing(p_ids bigint[])
returns table (outcome smallint, head bigint, created_at timestamptz, unseen bytea)
language sql stable
as $$
    select case when exists (select 1 from queen.partitions p where p.id = w.id)
                then 1 else 2 end::smallint, 0::bigint, null::timestamptz, null::bytea
      from unnest(p_ids) with ordinality w (id, n) order by w.n
$$;
