"""The pure part of the server: no I/O, no clock, no randomness.

Entry point: `server.ServerCore.handle(event, now) -> effects`.
"""
