-- Consumers that hold a lease; `members` counts the partitions that a group has begun. An older
-- server leaves it as it is.
alter table queen.group_stats add column consumers bigint not null default 0;
