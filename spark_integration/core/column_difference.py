"""What differs between the columns that are given and those that are wanted, for people. Pure.

Rules of this file: two schemas in, one sentence out.
"""

import pyarrow as pa

from spark_integration.core.wording import type_text


def column_difference(given: pa.Schema, wanted: pa.Schema, where: str) -> str:
    """Each column that does not fit, with both types. where: whose columns are wanted."""
    told = []
    for one in given:
        if one.name not in wanted.names:
            told.append(f"{one.name!r} ({type_text(one.type)}) is not there")
        elif not (found := wanted.field(one.name).type).equals(one.type):
            told.append(f"{one.name!r} is {type_text(one.type)}, and {type_text(found)} there")
    told += [f"{name!r} is missing" for name in wanted.names if name not in given.names]
    listed = ", ".join(f"{one.name} {type_text(one.type)}" for one in wanted)
    return (
        f"the columns are not those of {where}, {listed}: {'; '.join(told or ['they are in another order'])}"
    )
