"""The disk in memory by the name that the tests of the server give it."""

from dos_server.memory.disk import SECTOR, MemoryDisk

__all__ = ["SECTOR", "FakeDisk"]

FakeDisk = MemoryDisk
