"""The HTTP contract: one struct for every request, and the bytes of the hot answers.

Field names are those on the wire. Nulls are accepted wherever the published clients send
them; unknown fields are ignored except among queue options, where a misspelt name would
silently change what the queue promises.
"""
