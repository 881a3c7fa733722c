"""Sinks: where rows leave a region."""
