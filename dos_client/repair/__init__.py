"""Comparing and repairing the copies of objects."""
