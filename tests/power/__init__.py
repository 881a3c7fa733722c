"""Power cuts: a file system that loses what was not synced, servers on it, and what must be there afterwards.

`operations` and `disk_state` say what a disk may hold after its power was cut; `lossy_fs` is that as a FUSE
file system, a process; `mount` starts it; `history` is what was acknowledged, and `workload` makes it.
"""
