"""The bytes of the files in a data directory: their layouts, and what a start makes of them. Pure."""
