"""The declared state of an operator through its versions: columns, and migrations from version to version.

To change the columns of a state or their meaning, increment `state_version` and give a migration for each
older version that may still be in a checkpoint. Pickled objects are refused: no other release and no other
tool could read them reliably.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

from checkpoint import DeclaredState
from dataflow.errors import SchemaError, UserFault
from dataflow.schema import parse_schema
from dataflow.values.columns import row_taker
from dataflow.values.python_rows import FAULTS
from dos_protocol.errors import text_of

Value: TypeAlias = dict[str, Any]
"""A value of a declared state: column -> content."""

_pickled: Final = re.compile(r"\b(cloudpickle|dill|pickle|object|udt)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration from `version` of a state, with the columns `state`, to the next. `function(value)` takes a
    dict with the old columns and returns one with the new ones; it must depend on nothing else.

        Migration(1, "seconds bigint", lambda old: {"millis": old["seconds"] * 1000})
    """

    version: int
    state: "str | pa.Schema"
    function: Callable[[Value], Any]


def parse_state(state: "str | pa.Schema") -> pa.Schema:
    """Return the columns of a declared state. Raises SchemaError, with a remedy for pickle."""
    named = state if isinstance(state, str) else getattr(state, "__name__", "")
    try:
        columns = parse_schema(state)
    except SchemaError as error:
        if _pickled.search(named):
            raise _refused(f"{named!r}") from error
        raise
    for field in columns:
        if isinstance(field.type, pa.BaseExtensionType):
            raise _refused(f"column {field.name!r} of type {field.type}")
    return columns


def _refused(declared: str) -> SchemaError:
    return SchemaError(
        f"a state is kept in Arrow columns, never as pickle or objects, and {declared} was declared, which no"
        " other version of the code could read; write for example 'pages bigint, tags array<string>'"
    )


def columns_text(columns: pa.Schema) -> str:
    """Return the columns as in an operator's description. Never change it: old checkpoints would not fit."""
    return ", ".join(f"{field.name} {field.type}" for field in columns)


class StateHistory:
    """A declared state: its current and earlier columns. Raises SchemaError for gaps between versions."""

    def __init__(
        self, state: "str | pa.Schema", version: int = 1, migrations: Sequence[Migration] = ()
    ) -> None:
        self.columns = parse_state(state)
        self.version = version
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise SchemaError(f"state_version is a number of 1 or more, not {version!r}")
        invalid = [one for one in migrations if not isinstance(one, Migration) or not callable(one.function)]
        if invalid:
            raise SchemaError(f"a migration is Migration(version, state, function), not {invalid[0]!r:.80}")
        self._steps: Mapping[int, Migration] = {one.version: one for one in migrations}
        self._columns = {one.version: parse_state(one.state) for one in migrations} | {version: self.columns}
        self._normalise = {number: row_taker(columns, "state") for number, columns in self._columns.items()}
        given = sorted(one.version for one in migrations)
        if given != list(range(version - len(given), version)) or given[:1] == [0]:
            raise SchemaError(
                f"migrations lead from one version to the next, up to state_version={version}; those given"
                f" are from {', '.join(map(str, given))}"
            )

    @property
    def versions(self) -> list[int]:
        """The versions that can be read, the current one last."""
        return sorted(self._columns)

    def declared(self, *, ttls: Sequence[bool]) -> tuple[DeclaredState, ...]:
        """Return the present version for a checkpoint, and the others that can be read. ttls: whether values
        have a time to live, and if a restore takes over states without or with one, that.
        """
        newest_first = self.versions[::-1]
        return tuple(
            DeclaredState(columns_text(self._columns[version]), version, ttl)
            for version in newest_first
            for ttl in ttls
        )

    def columns_of(self, version: int) -> pa.Schema:
        """Return the columns of a version. Raises UserFault if it cannot be read."""
        columns = self._columns.get(version)
        if columns is None:
            held = f"it holds a state of version {version}, and this is version {self.version} of"
            raise UserFault(
                f"{held} state ({columns_text(self.columns)}), which has"
                f" migrations from {', '.join(map(str, self.versions[:-1])) or 'none'}",
                remedy=f"add Migration({version}, ...) again, as long as a retained checkpoint needs it"
                if version < self.version
                else f"run the graph that knows version {version}",
            )
        return columns

    @property
    def normalise(self) -> Callable[[Any], Value]:
        """A function that returns a value of the current version as it is read back. It raises UserFault for
        one that the columns do not hold exactly.
        """
        return self._normalise[self.version]

    def migrated(self, version: int, value: Value) -> Value:
        """Convert a value of an older version to the current one. Raises UserFault."""
        for step in range(version, self.version):
            try:
                made = self._steps[step].function(dict(value))
            except FAULTS as error:
                raise UserFault(f"the migration from version {step}: {text_of(error)}") from error
            try:
                value = self._normalise[step + 1](made)
            except UserFault as fault:
                raise UserFault(f"the migration from version {step}: {fault}", remedy=fault.remedy) from fault
        return value
