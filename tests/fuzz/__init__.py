"""Fuzzing of everything that reads bytes from outside: see `targets`, and `./run fuzz --help`."""
