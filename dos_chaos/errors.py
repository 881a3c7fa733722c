"""The errors of `dos chaos`."""

from dos_protocol.errors import DosError


class RunRefusedError(DosError):
    """The run was not started, and nothing was changed: the directories, store or options do not fit."""


class NotConvergedError(Exception):
    """Something did not recover within its time limit. It may be slow, or stuck: a longer run decides."""


class ServerStartError(RuntimeError):
    """`dos serve` ended, or printed something else, before it listened. The message has its log."""
