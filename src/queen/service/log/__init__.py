"""The log: from messages in a request to segments in a partition, once each."""
