"""The limits that both ends of a connection know; the unit is last in the name. Relations are checked at
import.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

PROTOCOL_VERSION: Final = 1

frame_header_bytes: Final = 32
meta_bytes_max: Final = 64 * KIB
payload_bytes_max: Final = 1 * MIB
"""The most that one APPEND, one DATA or one listing carries."""

digest_block_bytes: Final = 64 * KIB
name_bytes_max: Final = 128
id_bytes: Final = 16

text_bytes_max: Final = 1024
"""The longest error text, remedy or client name. The caller of the encoder truncates longer ones."""

store_record_bytes_max: Final = 16 * KIB
store_members_max: Final = 16
address_bytes_max: Final = 255
ping_bytes_max: Final = 4 * KIB

object_info_bytes_max: Final = 1 + name_bytes_max + 3 * 8 + 1
entries_max: Final = 6_000
"""Objects of one directory, and entries of one page. They fit one payload, see the check below."""

get_wait_ms_max: Final = 60_000

epoch_jump_max: Final = 1 << 20
"""A claim further above the held epoch is refused: one wild number must not block a directory (R17)."""

object_bytes_max: Final = 1 << 40
u64_max: Final = (1 << 64) - 1

if entries_max * object_info_bytes_max + 8 > payload_bytes_max:
    raise ValueError("a full directory must fit one payload: lower entries_max or raise payload_bytes_max")
if store_record_bytes_max + 2 * text_bytes_max + 64 > meta_bytes_max:
    raise ValueError("an error with a store record must fit one frame's meta")
if store_members_max * (id_bytes + 1 + 1 + address_bytes_max) + 64 > store_record_bytes_max:
    raise ValueError("a full store record must fit its limit")
