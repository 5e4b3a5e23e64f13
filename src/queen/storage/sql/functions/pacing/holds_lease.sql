-- Whether a lease of a group still lives in a partition.
create or replace function queen.holds_lease(p_group integer, p_partition bigint, p_lease uuid)
returns boolean
language sql stable
as $$
    select exists (
        select 1 from queen.cursors c
         where c.partition_id = p_partition and c.group_id = p_group
           and c.lease_id = p_lease and c.lease_until > clock_timestamp())
        or exists (
        select 1 from queen.shared_spans s
         where s.partition_id = p_partition and s.group_id = p_group
           and s.lease_id = p_lease and s.due_at > clock_timestamp())
$$;
