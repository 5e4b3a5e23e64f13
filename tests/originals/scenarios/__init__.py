"""What programs written for the original broker do, and what they must get back.

Each coroutine here is one scenario. It runs inside the environment of a published client,
so these modules import nothing of ours but `tests.originals.scene`.
"""
