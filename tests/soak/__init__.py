"""A soak with real processes: `./run python -m tests.soak --minutes 60`. See docs/robustness.md.

graph      the region's graph, and the short limits of all processes
cast       servers, region, producer, and what is done to them
figures    what is sampled: disks, open files, memory
__main__   the command and its report
"""
