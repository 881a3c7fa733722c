"""The base of every run: random streams, virtual time, and disks and networks with faults."""
