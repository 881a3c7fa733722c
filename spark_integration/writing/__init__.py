"""The sink `dos`: `staging` is the task's part, `committing` the driver's; `spark_writers` has Spark's classes."""
