"""The disk in memory by the name that the tests of the server give it."""

from dos_server.memory.disk import ENDLESS, SECTOR, MemoryDisk

__all__ = ["ENDLESS", "SECTOR", "FakeDisk"]

FakeDisk = MemoryDisk
