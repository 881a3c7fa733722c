"""Consistent cuts of a region: barriers, votes, the manifest, reset, and the versioned store of each worker.

`core/` is pure and decides the order of everything (what may be sent only after what is durable); the modules
beside it perform what the core asks for: sockets, threads, the journal. Rules and reasons: `design.md`
section 8 is told again, for readers of this code, in `protocol.md` ("Channel frame", "State block",
"Manifest", "Control messages") and in the docstrings of `core/coordinator.py` and `core/participant.py`.
"""
