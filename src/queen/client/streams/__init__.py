"""Streams: windows over queues, defined, consumed and looked at.

await queen.stream("visits").sources(["clicks"]).partitioned().tumbling_time(60).define()
await queen.consumer("visits", "billing").process(handler)
"""
