"""Journaled files: a directory whose changes are records, and that can be made again from them.

`directory` changes, `restoring` makes again, `history` goes back, `rebuilding` and `tree` touch the disk.
"""
