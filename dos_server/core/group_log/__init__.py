"""The group log: one log for the small durable writes of all objects of a server.

`record` is the format, `survey` finds the live part of the log at a start, `replay` decides what a start does
with each entry. Pure: files are `dos_server.log_files`.
"""
