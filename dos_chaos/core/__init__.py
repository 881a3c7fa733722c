"""Decisions of `dos chaos`, without I/O: the records, the plan of the faults, the checker, the report."""
