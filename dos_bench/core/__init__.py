"""The decisions of the bench, without I/O."""
