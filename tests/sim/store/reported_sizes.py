"""The sizes that a machine reported as synced."""


class ReportedSizes(dict[tuple[str, str], int]):
    """The reported size of each object by (directory, name), on its current disk."""

    def __init__(self) -> None:
        super().__init__()
        self._removed: dict[tuple[str, str], int] = {}

    def remove_requested(self, key: tuple[str, str]) -> None:
        """Record a request to remove that object: from now on the machine need not have it."""
        if key in self:
            self._removed[key] = self.pop(key)

    def ever(self) -> dict[tuple[str, str], int]:
        """Return all sizes ever reported, including those of objects to be removed."""
        return {key: synced for key, synced in (self._removed | self).items() if synced}

    def clear(self) -> None:
        super().clear()
        self._removed.clear()
