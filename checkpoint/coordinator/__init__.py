"""Running a region: the coordinator's thread, its manifest, its listeners."""
