"""Serializes a graph for the executors, with the user's functions by value.

pickle sends a function of a module by name, so an executor must be able to import the module. Users write
functions in a notebook (`__main__`, which cloudpickle sends by value) or in a file next to their script,
which no executor can import. So this module examines what the graph refers to by name, and sends the modules
by value that do not belong to an installed distribution. Modules of installed distributions, ours included,
must be installed on the executors; `on_executor` checks ours.

An executor may have another version of this package, while workers are upgraded one after the other. So the
fields of our dataclasses are sent by name, without those that have their default value: the other version
takes its own default for a field that only it knows, and refuses by name a value that it does not know.

This is the only file that pickles, and only for Spark's own task closure: nothing pickled is ever written to
a journal or sent on our connections.
"""

import copyreg
import dataclasses
import functools
import io
import json
import platform
import site
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyspark import cloudpickle

from dos_protocol.errors import DosError
from spark_integration.errors import ExecutorMismatchError
from spark_integration.on_executor import DISTRIBUTION, MISMATCH, PACKAGES, installed_version

_REGISTERING: Final = threading.Lock()
"""cloudpickle registers modules for the whole process, and queries start regions in threads of their own."""


def ship(value: Any, what: str) -> bytes:
    """Pickle `value`, with every function and class by value that the executors could not import.
    Raises DosError, which names `what`.
    """
    registered: list[ModuleType] = []
    with _REGISTERING:
        try:
            while True:  # a module that is sent by value may refer to further ones
                data, modules = _pickle(value, what)
                new = [m for m in modules if m not in registered and not executors_have(m)]
                if not new:
                    return data
                for module in new:
                    cloudpickle.register_pickle_by_value(module)
                registered += new
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


def _pickle(value: Any, what: str) -> tuple[bytes, list[ModuleType]]:
    stream = io.BytesIO()
    pickler = _NotingPickler(stream)
    try:
        pickler.dump(value)
    except Exception as error:
        raise DosError(
            f"{what} cannot be sent to the executors: {error}. Create files, locks and connections inside the"
            f" function that uses them, on the executor, instead of capturing them"
        ) from error
    return stream.getvalue(), list(pickler.modules.values())


class _NotingPickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # pyspark is not typed here
    """Records the modules whose functions and classes are sent by name."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.modules: dict[str, ModuleType] = {}

    def reducer_override(self, obj: Any) -> Any:
        # By position, a field that another version added would shift the others without an error.
        if _has_fields_by_position(type(obj)):
            return copyreg.__newobj__, (type(obj),), _stated(obj), None, None, set_fields  # type: ignore[attr-defined]
        if isinstance(obj, FunctionType | type):
            name = getattr(obj, "__module__", None)
            module = sys.modules.get(name) if isinstance(name, str) else None
            if module is not None and name != "__main__":
                self.modules[module.__name__] = module
        return super().reducer_override(obj)


def _has_fields_by_position(of: type) -> bool:
    ours = of.__module__.partition(".")[0] in PACKAGES
    return ours and getattr(of.__dict__.get("__getstate__"), "__module__", "") == dataclasses.__name__


def _stated(value: Any) -> dict[str, Any]:
    found = [(one, getattr(value, one.name)) for one in dataclasses.fields(value)]
    return {one.name: present for one, present in found if not _is_default(one, present)}


def _is_default(field: "dataclasses.Field[Any]", present: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(present == field.default_factory())
    return present is field.default


def set_fields(value: Any, stated: dict[str, Any]) -> None:
    """Set the fields of a dataclass as another version of its class has stated them. Raises
    ExecutorMismatchError.
    """
    known = {one.name: one for one in dataclasses.fields(value)}
    kind = type(value).__name__
    if unknown := [name for name in stated if name not in known]:
        raise _mismatch(f"the driver sets {', '.join(unknown)} of {kind}, which is unknown here")
    for name, one in known.items():
        if name in stated:
            found = stated[name]
        elif one.default is not dataclasses.MISSING:
            found = one.default
        elif one.default_factory is not dataclasses.MISSING:
            found = one.default_factory()
        else:
            raise _mismatch(f"the driver does not state {name} of {kind}, which is necessary here")
        object.__setattr__(value, name, found)


def _mismatch(problem: str) -> ExecutorMismatchError:
    version = installed_version(DISTRIBUTION)
    return ExecutorMismatchError(
        f"{MISMATCH} on {platform.node()}: {problem} ({DISTRIBUTION} {version}): install a version that fits"
        f" the driver's for {sys.executable}"
    )


def executors_have(module: ModuleType) -> bool:
    """Whether the module belongs to Python or to an installed distribution (editable ones included)."""
    top = module.__name__.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    file = getattr(module, "__file__", None)
    if file is None:
        return False
    owners = _owners().get(top, [])
    directories = [
        *_site_packages(),
        *(directory for owner in owners for directory in _directories_of(owner)),
    ]
    # Also where it is imported from: an installer may link one copy of a package into each environment.
    places = Path(file).absolute(), Path(file).resolve()
    return any(place.is_relative_to(directory) for place in places for directory in directories)


@functools.cache
def _owners() -> Mapping[str, list[str]]:
    """Return the distributions by package. They are read once, because that takes half a second. A
    distribution that is installed later is missing, so its modules are sent by value.
    """
    return metadata.packages_distributions()


def _site_packages() -> Iterator[Path]:
    paths = sysconfig.get_paths()
    for directory in (paths["purelib"], paths["platlib"], *site.getsitepackages()):
        yield Path(directory).absolute()
        yield Path(directory).resolve()


def _directories_of(owner: str) -> Iterator[Path]:
    """Yield where a distribution's packages are; for an editable installation also its source."""
    distribution = metadata.distribution(owner)
    yield Path(str(distribution.locate_file(""))).resolve()
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        yield Path(unquote(urlsplit(origin["url"]).path)).resolve()
