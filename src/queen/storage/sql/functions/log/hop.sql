-- 1 when a row lies on another page than when it was last updated, otherwise 0.
--
-- While somebody keeps a transaction open (a dump, a long query), dead versions of a row stay. Those
-- on one page hang together and are quick to pass. Each page has an entry in the index, and
-- these are not. So a row that is updated all the time counts its `hops`: they are the last column
-- of the index that it is looked up by, and whoever begins with the most of them finds the latest
-- version among the first. An update that stays on its page changes no index.
create or replace function queen.hop(p_place tid, p_page bigint) returns integer
language sql immutable
as $$
    select coalesce((queen.page_of(p_place) <> p_page)::integer, 0)
$$;
