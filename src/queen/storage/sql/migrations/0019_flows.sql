-- Where messages go: through which group, stream or query of Spark into which queue.
--
-- Servers count in memory and write their own numbers again and again, as they do with
-- `queen.activity`: absolute ones, so that a write that is repeated counts nothing twice.
create table queen.flows (
    -- `group`: a group of a queue; `stream`: a group of a stream; `sink`: a query of Spark.
    kind text not null,
    -- The queue or the stream that the group reads; 0 for a query of Spark.
    source_id integer not null,
    -- The name of the group, or of the query.
    via text not null,
    -- Where messages were pushed; 0 is nowhere: those that the group acknowledged.
    queue_id integer not null,
    server_id integer not null references queen.servers (id) on delete cascade,
    -- The minute that was counted last, its messages so far, and those of the minute before it.
    minute timestamptz not null,
    messages bigint not null,
    messages_before bigint not null,
    primary key (kind, source_id, via, queue_id, server_id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, vacuum_truncate = off);

create index flows_by_server on queen.flows (server_id);

-- How many runs of a pipeline have reported.
alter table queen.pipelines add column runs integer not null default 0;
update queen.pipelines set runs = 1 where run_id is not null;

-- Finds the dead letters of a queue that died of one thing; the text may be too long for an index.
create index dead_letters_by_error
    on queen.dead_letters (queue_id, md5(error), failed_at desc, id desc);
