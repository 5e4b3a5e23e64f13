-- A queue keeps the options that somebody has named; the others follow the defaults. Until now
-- every option was written down, so nobody could tell which were meant: those that are what the
-- default is are taken for it. An older server reads what is left out as its default.
update queen.queues q
   set options = (
       select coalesce(jsonb_object_agg(o.key, o.value), '{}')
         from jsonb_each(q.options) o
        where o.value is distinct from ('{
            "leaseTime": 300, "maxSize": 0, "ttl": 0, "retryLimit": 3, "retryDelay": 1000,
            "deadLetterQueue": true, "dlqAfterMaxRetries": true, "priority": 0,
            "delayedProcessing": 0, "windowBuffer": 0, "retentionSeconds": 0,
            "completedRetentionSeconds": 0, "retentionEnabled": false,
            "encryptionEnabled": false, "maxWaitTimeSeconds": 0, "dedup": "window",
            "dedupWindowSeconds": 600}'::jsonb -> o.key));
