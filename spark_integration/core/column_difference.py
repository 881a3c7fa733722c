"""Describes how two schemas differ, for people. Pure: no I/O."""

import pyarrow as pa

from spark_integration.core.wording import type_text


def column_difference(given: pa.Schema, expected: pa.Schema, target: str) -> str:
    """Return a sentence that lists each column that does not fit, with both types.

    `target` names what has the expected columns, for the message.
    """
    differences = []
    for one in given:
        if one.name not in expected.names:
            differences.append(f"{one.name!r} ({type_text(one.type)}) does not exist there")
        elif not (expected_type := expected.field(one.name).type).equals(one.type):
            differences.append(f"{one.name!r} is {type_text(one.type)}, but {type_text(expected_type)} there")
    differences += [f"{name!r} is missing" for name in expected.names if name not in given.names]
    listed = ", ".join(f"{one.name} {type_text(one.type)}" for one in expected)
    listed_differences = "; ".join(differences or ["their order differs"])
    return f"the columns do not match those of {target}, {listed}: {listed_differences}"
