"""Visitors: clients that use a single server instead of the store, as the clients of the original service do
(version 0), and as `dos append` does with one server (version 1 without a claim). In a directory that is
never claimed they append to the same files, read, list and remove.
`visitors.py` has all of them.
"""

from typing import Final

LOOSE: Final = "a-loose"
"""The directory. (Its name sorts before those of journals.)"""
