"""Consistent checkpoints of a region: barriers, votes, the manifest, reset, and the versioned store of each
worker.

`core/` is pure and decides the order of all actions, in particular what may be sent only after something is
durable. The modules beside it perform what the core requests: sockets, threads, the journal. protocol.md has
the rules and their reasons ("Channel frame", "State block", "Manifest", "Control messages"), as have the
docstrings of `core/coordinator.py` and `core/participant.py`.
"""
