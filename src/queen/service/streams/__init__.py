"""Streams: windows over queues, planned once and handed out as leased work.

definitions   what streams there are; define, change, delete
planner       closes windows when their time has come
work          lease, ack, nack, renew, seek, for each consumer group
content       the messages of a window
overview      lists, lag and reasons for people
"""
