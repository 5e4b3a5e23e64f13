"""NEXMark: an auction house as a benchmark of stream engines, over queues and Spark.

Persons register, open auctions and bid; the benchmark's queries run as pipelines over the three
queues, and what they give is held against plain Python.
"""
