"""The sink `dos`: what tasks and the driver do when Spark writes. Begin reading at `core/sink_commits.py`,
which decides; `staging` is a task's part, `committing` the driver's, `spark_writers` has Spark's classes.
"""
