"""Decisions of `dos chaos`, without I/O."""
