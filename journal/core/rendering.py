"""Format a record as one line of text, in the style of the original service, or of JSON.

Every byte is escaped, so that no record can control a terminal. Pure: no I/O.
"""

import msgspec

from dos_protocol.errors import CorruptDataError, DosError
from journal.core.inspection import Located, kind_of
from journal.limits import dump_string_bytes_max


def as_text(located: Located, *, full: bool = False, when: str = "") -> str:
    """Format a record as `OFFSET NAME version=1 op=5 tag=2 ints=[10] strings=['/w/a', '0\\n']`.

    The part after the name is the output of the original dump tool. `when`: the time, to show after the
    offset.
    """
    start = " ".join(filter(None, (str(located.offset), when, located.record.op.name)))
    return f"{start} {as_original(located, full=full)}"


def as_original(located: Located, *, full: bool = True) -> str:
    """Format a record like the original dump tool: `version=0 op=1 tag=2 ints=[10] strings=['/w/a',
    '0\\n']`.
    """
    record = located.record
    strings = ", ".join(_quoted(string, full) for string in record.strings)
    flags = f" flags={record.flags:#06x}" if record.flags else ""
    return (
        f"version={located.version} op={record.op.value} "
        f"tag={record.tag}{flags} ints={list(record.ints)} strings=[{strings}]"
    )


def _quoted(string: bytes, full: bool) -> str:
    if full or len(string) <= dump_string_bytes_max:
        return repr(string)[1:]
    return f"{repr(string[:dump_string_bytes_max])[1:]}...[{len(string)} bytes]"


def as_json(located: Located, *, full: bool = False, time_ms: int | None = None) -> str:
    """Format a record as one JSON object, with its wall clock if `time_ms` is given.

    A string is {"bytes": its length, "text": ...} if it is UTF-8, otherwise with "hex" instead of "text", and
    with "cut": true if only its beginning is included.
    """
    record = located.record
    line = {
        "segment": located.segment,
        "offset": located.offset,
        "end": located.end,
        "version": located.version,
        "op": record.op.value,
        "name": record.op.name,
        "tag": record.tag,
        "flags": record.flags,
        "ints": record.ints,
        "strings": [_described(string, full) for string in record.strings],
    }
    return msgspec.json.encode(line if time_ms is None else {**line, "timeMs": time_ms}).decode()


def _described(string: bytes, full: bool) -> dict[str, object]:
    part = string if full else string[:dump_string_bytes_max]
    described: dict[str, object] = {"bytes": len(string)}
    try:
        string.decode()
    except UnicodeDecodeError:
        described["hex"] = part.hex()
    else:
        described["text"] = part.decode(errors="ignore")
    if len(part) < len(string):
        described["cut"] = True
    return described


def fault_fields(fault: DosError, base: int = 0) -> dict[str, object]:
    """Return the fields of a fault: kind, segment, offset in it, logical offset, expected, found, hint."""
    fields: dict[str, object] = {"kind": kind_of(fault)}
    if isinstance(fault, CorruptDataError):
        fields["segment"] = fault.where
        fields["offset"] = fault.offset
        fields["logical_offset"] = base + fault.offset
        fields["expected"] = fault.expected
        fields["found"] = fault.found
        fields["hint"] = fault.hint
    else:
        fields["problem"] = str(fault.args[0])
        fields["hint"] = fault.remedy
    return fields


def fault_text(fault: DosError, base: int = 0) -> str:
    """Format a fault as text, one field per line."""
    fields = fault_fields(fault, base)
    return "\n".join(f"{name.replace('_', ' '):<15} {value}" for name, value in fields.items() if value != "")
