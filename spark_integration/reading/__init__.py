"""The read side of the source `dos`: `readers` has Spark's classes, which call everything else.

The driver plans, and reads only what planning needs. Tasks read planned ranges, so that a retried task
returns the same rows. Only `opening` opens a store.
"""
