"""Tools on the data directory of a server that does not run."""
