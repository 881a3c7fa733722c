"""The rule of any type (`kinds.py`), with null; how columns of lists, structs and maps take values, and
how maps are read.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dataflow.errors import UserFault
from dataflow.schema import type_text
from dataflow.values.kinds import SCALARS, Makers, MisfitError, Take, ValueRule, plain, shown, types_of
from dataflow.values.times import TIMES

REFUSED: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for a value that does not fit."""


@lru_cache(maxsize=4_096)
def rule_of(field: pa.Field) -> ValueRule:
    """Return the rule of a field: that of its type, and None if it is nullable."""
    bare, nullable, kind = _bare_rule(field.type), field.nullable, field.type

    def take(value: Any) -> Any:
        if value is not None:
            taken = bare.take(value)
            if taken is not None:  # pandas' NA and NaT
                return taken
        if not nullable:
            raise MisfitError(kind, "no null", value, NO_NULL)
        return None

    def quick(values: Sequence[Any]) -> bool:
        if bare.quick(values):
            return True
        if not nullable:
            return False
        present = [value for value in values if value is not None]
        return len(present) < len(values) and bare.quick(present)

    return ValueRule(take, quick, bare.same)


NO_NULL: Final = "return a value, or declare the column without NOT NULL"


def _bare_rule(kind: pa.DataType) -> ValueRule:
    for test, make in _makers:
        if test(kind):
            return make(kind)
    return _other(kind)


# --- nested types -------------------------------------------------------------------------------------------


def _list(kind: pa.DataType) -> ValueRule:
    element = rule_of(kind.value_field)
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    holds = "lists" if size is None else f"lists of {size} values"

    def take(value: Any) -> list[Any] | None:
        if type(value) is not list:
            value = plain(value)
            if isinstance(value, (pa.Array, pa.ChunkedArray)):
                value = values_of(value)
            if value is None:
                return None
        if not isinstance(value, (list, tuple, np.ndarray)) or size not in (None, len(value)):
            raise MisfitError(kind, holds, value, "pass a list; a text is not one of its letters")
        found = list(value)
        if element.same(found):
            return found
        taken = []
        for index, one in enumerate(found):
            try:
                taken.append(element.take(one))
            except MisfitError as misfit:
                raise misfit.inside(f"[{index}]") from None
        return taken

    def quick(values: Sequence[Any]) -> bool:
        if values and types_of(values) != {list}:
            return False
        return (size is None or set(map(len, values)) <= {size}) and element.quick(
            [*chain.from_iterable(values)]
        )

    return ValueRule(take, quick)


def _struct(kind: pa.DataType) -> ValueRule:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    names = [field.name for field in fields]
    kinds = [rule_of(field) for field in fields]
    known = set(names)
    if len(known) < len(names):
        return _other(kind)
    holds = f"dicts with exactly {', '.join(map(repr, names))}, and tuples of {len(names)} values"

    def take(value: Any) -> dict[str, Any] | None:
        value = plain(value)
        if value is None:
            return None
        given = _fields(value)
        if given is None:
            raise MisfitError(kind, holds, value, "pass all fields, None for those without a value")
        taken = {}
        for name, of_field, one in zip(names, kinds, given, strict=True):
            try:
                taken[name] = of_field.take(one)
            except MisfitError as misfit:
                raise misfit.inside(f".{name}") from None
        return taken

    def _fields(value: Any) -> Sequence[Any] | None:
        value = named(value)
        if isinstance(value, Mapping):
            return [value[name] for name in names] if value.keys() == known else None
        return value if isinstance(value, tuple) and len(value) == len(names) else None

    def quick(values: Sequence[Any]) -> bool:
        if values and (types_of(values) != {dict} or set(map(len, values)) != {len(names)}):
            return False
        try:
            columns = [list(map(itemgetter(name), values)) for name in names]
        except KeyError:
            return False
        return all(of_field.quick(column) for of_field, column in zip(kinds, columns, strict=True))

    return ValueRule(take, quick)


def named(row: Any) -> Any:
    """Return a row of Spark, a tuple with the names of its fields, as a dict; others unchanged."""
    names = getattr(row, "__fields__", None) if isinstance(row, tuple) else None
    return row if names is None else dict(zip(names, row, strict=True))


def _map(kind: pa.DataType) -> ValueRule:
    key, item, as_dict = rule_of(kind.key_field), rule_of(kind.item_field), _reads_as_dict(kind)
    holds = "dicts, and lists of pairs, with different keys"

    def take(value: Any) -> Any:
        value = plain(value)
        if value is None:
            return None
        pairs = [*value.items()] if isinstance(value, Mapping) else value
        if not isinstance(pairs, (list, tuple)) or not all(
            isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs
        ):
            raise MisfitError(kind, holds, value, "pass a dict")
        taken = []
        for one, of_one in pairs:
            try:
                taken.append((key.take(one), item.take(of_one)))
            except MisfitError as misfit:
                raise misfit.inside(f"[{shown(one)}]") from None
        if not as_dict:
            return taken
        made = dict(taken)
        if len(made) < len(taken):
            raise MisfitError(kind, holds, value, "give each key once")
        return made

    def quick(values: Sequence[Any]) -> bool:
        if values and types_of(values) != {dict}:
            return False
        items = [*chain.from_iterable(map(dict.values, values))]
        return key.quick([*chain.from_iterable(values)]) and item.quick(items)

    return ValueRule(take, quick)


def _reads_as_dict(kind: pa.DataType) -> bool:
    """Whether the values of a map are read as dicts: its keys can be keys of one."""
    return not pa.types.is_nested(kind.key_type)


def values_of(column: "pa.Array | pa.ChunkedArray") -> list[Any]:
    """Return the values of a column as functions read them: as Arrow gives them, but maps as dicts."""
    values: list[Any] = column.to_pylist()
    read = _map_reader(column.type)
    return values if read is None else [None if value is None else read(value) for value in values]


@lru_cache(maxsize=4_096)
def _map_reader(kind: pa.DataType) -> Take | None:
    """Return a function from a value that Arrow gives, not null, to one with its maps as dicts; None if there
    is no map in the type.
    """
    types = pa.types
    if types.is_map(kind):
        key, item = _map_reader(kind.key_type), _map_reader(kind.item_type)

        def read_map(pairs: Any) -> Any:
            read = [(_read(key, one), _read(item, of_one)) for one, of_one in pairs]
            made = dict(read) if _reads_as_dict(kind) else read
            if len(made) < len(read):
                raise UserFault(f"a {type_text(kind)} has a key twice: {shown(pairs)}")
            return made

        return read_map
    if _is_list(kind):
        element = _map_reader(kind.value_type)
        return None if element is None else lambda value: [_read(element, one) for one in value]
    if types.is_struct(kind):
        readers = {kind.field(at).name: _map_reader(kind.field(at).type) for at in range(kind.num_fields)}
        if any(readers.values()):
            return lambda value: {name: _read(readers[name], one) for name, one in value.items()}
    return None


def _read(read: Take | None, value: Any) -> Any:
    return value if read is None or value is None else read(value)


# --- the rest -----------------------------------------------------------------------------------------------


def _null(kind: pa.DataType) -> ValueRule:
    def take(value: Any) -> None:
        if plain(value) is not None:
            raise MisfitError(kind, "null alone", value, "declare the type of the column")

    return ValueRule(take, lambda values: not values)


def _dictionary(kind: pa.DataType) -> ValueRule:
    return _bare_rule(kind.value_type)


def _other(kind: pa.DataType) -> ValueRule:
    """Return the rule of a type without a rule of its own: it takes what Arrow gives back unchanged."""

    def take(value: Any) -> Any:
        try:
            made = pa.scalar(value, kind).as_py()
            if type(made) is type(value) and made == value:
                return made
        except REFUSED:
            pass
        raise MisfitError(kind, "what Arrow gives back unchanged", value, "declare another type")

    return ValueRule(take, lambda values: not values)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


_makers: Final[Makers] = (
    *SCALARS,
    *TIMES,
    (pa.types.is_map, _map),
    (_is_list, _list),
    (pa.types.is_struct, _struct),
    (pa.types.is_dictionary, _dictionary),
    (pa.types.is_null, _null),
)
