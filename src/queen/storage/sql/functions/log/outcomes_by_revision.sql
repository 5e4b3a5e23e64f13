-- For `queen.append` and `queen.publish`: 3 for each partition whose queue has another revision
-- than the messages were prepared for, 0 for the others; a null was prepared for any.
create or replace function queen.outcomes_by_revision(p_revision integer[], p_prepared integer[])
returns smallint[]
language sql immutable
as $$
    select array(select case when w.revision <> w.prepared then 3 else 0 end::smallint
                   from unnest(p_revision, p_prepared) with ordinality w (revision, prepared, n)
                  order by w.n)
$$;
