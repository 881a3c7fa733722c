"""What a directory of a store belongs to, told from its name. Pure: no I/O.

A name that fits nothing here is a user's own directory, for example that of journaled files.
"""

import re
from typing import Any, Final

_KINDS: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("manifest", r"(?P<owner>.+)\.coord"),
        ("requests", r"(?P<owner>.+)\.(requests|answers)"),
        ("staged rows", r"(?P<owner>.+?)\.sink\..+\.p\d{4,}"),
        ("input", r"(?P<owner>.+?)\.in\.[^.]+(\.[^.]+)?"),
        ("readers", r"(?P<owner>.+?)\.(rd\..+|ro)"),
        ("sites", r"(?P<owner>.+?)\.sites(-.*)?"),
        ("worker", r"(?P<owner>.+?)\.w\d{4,}(\..+)?"),
    )
)


def directory_row(name: str) -> dict[str, Any]:
    """Return the name, the kind of directory ("" if it is not one of this project's), and the region or
    application that it belongs to.
    """
    for kind, pattern in _KINDS:
        if (found := pattern.fullmatch(name)) is not None:
            return {"name": name, "kind": kind, "owner": found["owner"]}
    return {"name": name, "kind": "", "owner": ""}
