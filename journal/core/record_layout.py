"""The byte layouts of records, versions 0 and 1, and their constants.

Property tests compare every layout below with the executable specification in
`tests/specifications/records.py`. All numbers are big-endian.

Version 1, 24 + body + 8 bytes:

    offset size
         0    2  magic, D0 4A
         2    1  version, 1
         3    1  op
         4    2  flags. A reader may ignore unknown bits of 0x00ff; it must reject unknown bits of 0xff00
         6    1  number of ints, I
         7    1  number of strings, S
         8    8  tag (0 = none)
        16    4  body bytes, B = 8*I + 8*S + the lengths of all strings; at most 64 MiB
        20    4  header digest: the low 32 bits of xxh3-64 over bytes 0..19
        24  8*I  the ints
          +  8*S  the sizes of the strings
          +    .  the strings, one after another
      24+B    8  xxh3-64 over bytes 0 .. 24+B-1

A version 1 record is valid if and only if

    (1) magic and version are right
    (2) the header digest matches
    (3) no flag of 0xff00 is set that the reader does not know
    (4) the op is known
    (5) B is within the limit and equal to the sum above
    (6) the final digest matches
    (7) a file operation has its arity

The decoder checks (1) to (4) and the limit of B before it waits for the body, so it never takes a flipped
length for a record that is cut off.

Version 0, the format of the original service, 4 + length bytes and no checksum:

    offset size
         0    4  length of what follows, L = 12 + 8*I + 8*S + the lengths of all strings
         4    1  version, 0
         5    1  op: 0 truncate, 1 write, 2 remove
         6    1  number of ints, I
         7    1  number of strings, S
         8    8  tag (0 = none)
        16  8*I  the ints
          +  8*S  the sizes of the strings
          +    .  the strings

A version 0 record is valid if and only if

    (1) the version is 0
    (2) the op is one of the three, with its arity
    (3) L is within the limit and equal to the sum above, checked as soon as the sizes have arrived
"""

from struct import Struct
from typing import Final

import xxhash

from journal.limits import record_ints_max, record_strings_max
from journal.ops import FILE_ARITY, OPS_BY_NUMBER, Op

MAGIC: Final = b"\xd0\x4a"
VERSION_1: Final = 1
FLAGS_MUST_UNDERSTAND: Final = 0xFF00
"""A reader rejects a record with an unknown flag of this mask. Version 1 currently defines none."""

HEADER_V1: Final = Struct(">2sBBHBBQII")
HEADER_V0: Final = Struct(">IBBBBQ")
DIGEST_BYTES: Final = 8
DIGESTED_HEADER_BYTES: Final = HEADER_V1.size - 4
LENGTH_BYTES_V0: Final = 4
FIXED_BYTES_V0: Final = HEADER_V0.size - LENGTH_BYTES_V0
assert HEADER_V1.size == 24
assert HEADER_V0.size == 16
assert FIXED_BYTES_V0 == 12

WORDS: Final = tuple(Struct(f">{count}Q") for count in range(record_ints_max + record_strings_max + 1))
xxh3 = xxhash.xxh3_64_intdigest
ARITY: Final = tuple(FILE_ARITY[Op(number)] for number in range(len(FILE_ARITY)))
KNOWN_OPS: Final = len(OPS_BY_NUMBER)
