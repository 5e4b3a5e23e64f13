-- Closes the past of the queues with names like a pattern, those that are there and those that
-- will be: returns the instant, and the queues that are there. A queue that is made later
-- begins at or after it.
--
-- p_namespaces  only queues of these; null: of all
-- p_since       as `queen.cut` has it
-- p_most        with more queues than this nothing is sealed, and the instant is null
--
-- Nobody makes a queue between the look at what there is and the end of the transaction: a
-- message in it could be older than the instant, and would not be among what is read before it.
create or replace function queen.cut_matching(
    p_like text, p_namespaces text[], p_since timestamptz, p_most integer,
    out sealed timestamptz, out queues integer[]
)
language plpgsql
set search_path = queen, pg_temp
as $$
begin
    queues := queen.matching(p_like, p_namespaces);
    if p_since is not null and (select h.sealed_until >= p_since from horizon h)
       and queen.is_quiet(queues, p_since) then
        sealed := p_since;
        return;
    end if;
    perform pg_advisory_xact_lock(7001, 0);
    queues := queen.matching(p_like, p_namespaces);
    if cardinality(queues) <= p_most then
        sealed := queen.cut(queues, null);
        update horizon h set sealed_until = greatest(h.sealed_until, sealed);
    end if;
end
$$;
