"""The sink `dos`: what tasks and the driver do when Spark writes.

Start reading at `core/sink_commits.py`, which decides. `staging` is the task's part, `committing` the
driver's; `spark_writers` has Spark's classes.
"""
