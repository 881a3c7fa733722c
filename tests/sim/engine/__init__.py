"""What every run stands on: one seed, virtual time, disks and networks with a fate."""
