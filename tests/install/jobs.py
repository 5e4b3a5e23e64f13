"""The one job of each extra, as a program: it runs in any environment that has the package."""

from __future__ import annotations

# The arguments: the URL of a broker, a queue, and modules that must not be there.
CLIENT = """
import importlib.util, sys, tempfile, queen
print(queen.__file__)
for name in sys.argv[3:]:
    assert importlib.util.find_spec(name) is None, name
with queen.SyncQueen(sys.argv[1]) as client:
    orders = client.queue(sys.argv[2])
    orders.push({"one": 1})
    orders.push(list(range(300)))
    print([message.data for message in orders.batch(2).limit(2)])
    print(len(list(orders.replay())))
with queen.SyncQueen("http://127.0.0.1:1", spool=tempfile.mkdtemp()) as client:
    print(client.queue("orders").push(1)[0].status)
"""
CLIENT_PRINTS = ["[{'one': 1}, 0]", "301", "buffered"]

# The arguments: the URL of a broker and a queue. Its rows go to another queue, so both the source
# and the sink have done something.
SPARK = """
import sys
from queen import SyncQueen
from queen.spark import session

url, queue = sys.argv[1:]
with SyncQueen(url) as broker:
    broker.queue(queue).partition("anna").push([{"price": 4}, {"price": 30}])
    settings = {"spark_ui_enabled": False, "spark_driver_memory": "512m"}
    spark = session("installed", "local[1]", **settings)
    read = spark.read.format("queen").option("url", url).option("queue", queue)
    frame = read.schema("partition string, data struct<price: int>").load()
    doubled = frame.selectExpr("data.price * 2 as data")
    sink = doubled.write.format("queen").option("url", url).option("queue", queue + "-doubled")
    sink.mode("append").save()
    spark.stop()
    found = broker.queue(queue + "-doubled").batch(10).partitions(10).pop(auto_ack=True)
    print(sorted(message.data for message in found))
"""
SPARK_PRINTS = ["[8, 60]"]

# The arguments: the URL of a Redis server and a stream.
REDIS = """
import asyncio, sys
from queen.streambroker import stream_broker_from_url

async def main():
    async with stream_broker_from_url(sys.argv[1]) as broker:
        await broker.create_group(sys.argv[2], "senders", "0")
        await broker.xadd(sys.argv[2], {"to": "anna"})
        for entry in await broker.xreadgroup("senders", "worker", sys.argv[2]):
            print(entry.data, await broker.xack(sys.argv[2], "senders", [entry.id]))

asyncio.run(main())
"""
REDIS_PRINTS = ["{'to': 'anna'} 1"]
