"""The sink `dos`: `staging` is the part of a task, `committing` that of the driver."""
