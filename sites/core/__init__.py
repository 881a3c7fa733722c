"""Decisions about replicas at sites, without I/O."""
