"""Counts what a process holds in memory: the entries of every container that can be reached from some
objects.

A leak of the product is in nearly all cases an entry that remains in a container. So the census names each
container by the class and the attribute that hold it, such as `ServerTables.directories` (`[]` for a
container within it), and counts its entries over all instances; and it counts the instances of each class. In
contrast to the memory of the operating system this is exact: one entry too many per reset is visible.

Only classes of the product are named; classes of the tests are passed through. Modules, functions and classes
are not followed, except what a closure or a bound method holds.
"""

import enum
import gc
import random
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

_PRODUCT: Final = (
    *("checkpoint", "dataflow", "dos_client", "dos_monitoring", "dos_protocol", "dos_server", "dos_tls"),
    "journal",
)
_ATOMS: Final = (str, bytes, int, float, bool, type(None), type, types.ModuleType, enum.Enum, random.Random)
_CONTAINERS: Final = (dict, list, set, frozenset, deque)
_Found = Iterator[tuple[str, object]]


def census(roots: Iterable[object], *, stop: tuple[type, ...] = ()) -> dict[str, int]:
    """Return name -> count of what can be reached from the roots. stop: instances of these classes are not
    followed, unless they are roots."""
    counts: Counter[str] = Counter()
    seen: set[int] = set()
    alive: list[object] = []  # so that no id is used twice during the walk
    todo: list[tuple[str, object]] = [("root", root) for root in roots]
    for _, root in todo:
        seen.add(id(root))
    first = len(todo)
    while todo:
        label, one = todo.pop()
        if len(todo) >= first and isinstance(one, stop):
            continue
        alive.append(one)
        for name, held in _held_by(label, one, counts):
            if id(held) not in seen and not isinstance(held, _ATOMS) and not isinstance(held, stop):
                seen.add(id(held))
                todo.append((name, held))
    return dict(counts)


def census_of_process() -> dict[str, int]:
    """Return the same of all objects of this process that the garbage collector knows, without roots: of
    containers only those that an instance of the product holds itself or within another one. Instances of
    trio are counted, too: tasks and cancel scopes that remain.
    """
    counts: Counter[str] = Counter()
    gc.collect()  # what waits for it does not remain
    for one in gc.get_objects():
        kind = type(one)
        module = str(kind.__module__).partition(".")[0]
        if module in (*_PRODUCT, "trio"):
            counts[f"{kind.__name__} instances"] += 1
        if module not in _PRODUCT:
            continue
        for attribute in _attributes(one):
            _count_entries(f"{kind.__name__}.{attribute}", getattr(one, attribute, None), counts)
    return dict(counts)


def _count_entries(label: str, held: object, counts: Counter[str]) -> None:
    if isinstance(held, _CONTAINERS):
        counts[label] += len(held)
        values = list(held.values()) if isinstance(held, dict) else list(held)
        counts[f"{label}[]"] += sum(len(one) for one in values if isinstance(one, _CONTAINERS))
    elif isinstance(held, bytearray):
        counts[f"{label} bytes"] += len(held)


def _held_by(label: str, one: object, counts: Counter[str]) -> _Found:
    """Yield (label, object) for everything that an object holds, and count it."""
    if isinstance(one, dict):
        counts[label] += len(one)
        for key, value in list(one.items()):
            yield f"{label}[]", key
            yield f"{label}[]", value
    elif isinstance(one, list | set | deque | frozenset):
        counts[label] += len(one)
        yield from ((f"{label}[]", part) for part in list(one))
    elif isinstance(one, bytearray):
        counts[f"{label} bytes"] += len(one)
    elif isinstance(one, tuple) and type(one) is tuple:
        yield from ((label, part) for part in one)
    elif isinstance(one, types.MethodType):
        yield label, one.__self__
    elif isinstance(one, partial):
        yield from ((label, part) for part in (one.func, *one.args, *one.keywords.values()))
    elif isinstance(one, types.FunctionType):
        yield from ((label, cell.cell_contents) for cell in one.__closure__ or () if _is_set(cell))
    elif isinstance(one, types.CoroutineType | types.AsyncGeneratorType | types.GeneratorType):
        yield from _of_frame(one)
    else:
        yield from _of_instance(one, counts)


def _is_set(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises ValueError if it is empty
    except ValueError:
        return False
    return True


def _of_frame(one: Any) -> _Found:
    for prefix in ("cr", "ag", "gi"):
        frame = getattr(one, f"{prefix}_frame", None)
        if frame is not None:
            name = getattr(one, "__qualname__", "coroutine")
            yield from ((f"{name}: {variable}", value) for variable, value in frame.f_locals.items())
        awaited = getattr(one, f"{prefix}_await", None)
        if awaited is not None:
            yield "awaited", awaited


def _of_instance(one: object, counts: Counter[str]) -> _Found:
    kind = type(one)
    module = kind.__module__.partition(".")[0]
    if module in _PRODUCT:
        counts[f"{kind.__name__} instances"] += 1
    elif module != "tests":
        return
    for attribute in _attributes(one):
        try:
            value = getattr(one, attribute)
        except AttributeError:
            continue
        yield f"{kind.__name__}.{attribute}", value


def _attributes(one: object) -> list[str]:
    kind = type(one)
    found = list(getattr(one, "__dict__", ()))
    found += getattr(kind, "__struct_fields__", ())
    found += getattr(kind, "_fields", ())
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in dict.fromkeys(found) if name not in ("__dict__", "__weakref__")]
