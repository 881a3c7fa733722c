"""The stored lists: equivalent mutants, kills for CI, planted bugs. Rows name mutants by their keys."""

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutation.mutants import ROOT, Key, Mutant, source_of

HERE = Path(__file__).parent
EQUIVALENTS = HERE / "equivalents.toml"
KILLS = HERE / "kills.toml"
PLANTED = HERE / "planted.toml"


class Planted(NamedTuple):
    """A bug written by a person: a text that occurs once in the source, its replacement, and the near tests
    that find the bug."""

    name: str
    module: str
    before: str
    after: str
    tests: list[str]

    def text(self) -> str | None:
        """Return the source with the bug; None if the source has changed there."""
        path = ROOT / self.module
        source = path.read_text(encoding="utf-8") if path.exists() else ""
        return source.replace(self.before, self.after) if source.count(self.before) == 1 else None


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return list(tomllib.loads(path.read_text(encoding="utf-8")).get(table, []))


def key_of(row: dict[str, Any]) -> Key:
    return Key(row["module"], row["where"], row["operator"], row["before"], row["after"], row.get("nth", 0))


def equivalents() -> dict[Key, str]:
    """Return the reasons by key."""
    return {key_of(row): row["reason"] for row in rows(EQUIVALENTS, "equivalent")}


def kills() -> dict[Key, str]:
    """Return the tests by key."""
    return {key_of(row): row["test"] for row in rows(KILLS, "kill")}


def planted() -> list[Planted]:
    return [Planted(**row) for row in rows(PLANTED, "bug")]


def mutants_of(keys: Iterable[Key]) -> dict[Key, Mutant]:
    """Return those keys that name a mutant of the current source."""
    wanted = set(keys)
    modules = sorted({key.module for key in wanted if (ROOT / key.module).exists()})
    return {one.key: one for module in modules for one in source_of(module).mutants if one.key in wanted}


def as_row(table: str, key: Key, **more: str) -> str:
    """Return one row as TOML. A JSON string is a valid TOML string."""
    pairs = [(name, value) for name, value in {**key._asdict(), **more}.items() if name != "nth" or value]
    return "\n".join(
        [f"[[{table}]]", *(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in pairs), ""]
    )
