"""What a machine told to have synced."""


class Told(dict[tuple[str, str], int]):
    """How much of each object, by directory and name, on the disk that it has."""

    def __init__(self) -> None:
        super().__init__()
        self._removed: dict[tuple[str, str], int] = {}

    def is_to_remove(self, key: tuple[str, str]) -> None:
        """It was asked to remove that object: from now on it need not have it."""
        if key in self:
            self._removed[key] = self.pop(key)

    def ever(self) -> dict[tuple[str, str], int]:
        """Of each object; of those that it was to remove, until then."""
        return {key: synced for key, synced in (self._removed | self).items() if synced}

    def clear(self) -> None:
        super().clear()
        self._removed.clear()
