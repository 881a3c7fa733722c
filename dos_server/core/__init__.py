"""The pure half of the server.

No I/O, no clock, no randomness. `server.ServerCore.handle(event, now) -> effects`.
"""
