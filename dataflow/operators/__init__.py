"""Operators: what happens to rows between a source and a sink."""
