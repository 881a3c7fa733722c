"""Tools for the data directory of a server that is not running."""
