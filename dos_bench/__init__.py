"""`dos bench`: measures a user's own store, verifies everything that it wrote there, and deletes it.

core/figures   the records that are written and compared, and what is computed from times
visiting       a store of the user: refused while it is in use; what a run wrote is deleted on every member
measuring      the measurements, and the comparison of all bytes at the end; `cli` the command
"""

from dos_protocol.errors import DosError


class BenchRefusedError(DosError):
    """The store is in use, or holds what would be in the way. Nothing of others was changed."""
