"""The pure part of the server: no I/O, no clock, no randomness.

Entry point: `server_core.ServerCore.handle(event, now) -> effects`. Two rooms: `files` has the bytes of a
data directory, `requests` what is done with each request. `requests` imports `files`, never the other way.
"""
