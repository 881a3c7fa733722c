"""Clients that are no members' clients: each goes to one server, as the clients of the original service do
(version 0), and as `dos append` does to a single server (version 1 without a claim). In a directory that
nobody claims they append to the same files, look, and remove.

    files      what such a file may hold, and what the server said of it: judged at the server's boundary
    version0   a client of version 0
    version1   a client of version 1 without a claim
    crowd      which runs have them, and who comes when
"""

from typing import Final

LOOSE: Final = "a-loose"
"""The directory. (Its name comes before those of journals.)"""
