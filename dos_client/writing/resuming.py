"""Continue a plain object that has content, at its end, on a claim.

Not for segments of a chain. `journal` takes chains over by its own rules.
"""

from dos_client.core.record_log import longest
from dos_client.live_store import Store
from dos_client.writing.claim import Claim
from dos_client.writing.object_writer import ObjectWriter
from dos_protocol.errors import CorruptError
from dos_protocol.limits import digest_block_bytes
from dos_protocol.names import id_text


async def resume(store: Store, claim: Claim, name: str) -> ObjectWriter:
    """Return a writer that continues at the object's end.

    Raises CorruptError if members hold different bytes, or the error of a member that cannot be read.
    """
    base, digest, tail = await end_of(store, claim, name)
    return claim.resume_object(name, base, digest, tail)


async def end_of(store: Store, claim: Claim, name: str) -> tuple[int, int, bytes]:
    """Return the end of an object: the last block boundary, the prefix digest there, and the bytes after it.

    The longest copy is continued if all others are prefixes of it. If copies contradict each other, this
    module cannot decide which one counts (docs/decisions/0014).
    """
    copy = longest(claim.answers, name)
    if copy is None or not copy[1].synced:
        return 0, 0, b""
    member = store.record.member(copy[0])
    assert member is not None
    reader = await store.reader(member, claim.directory)
    for server_id, objects in claim.answers.items():
        info = objects.get(name)
        if info is not None and info.synced and (await reader.stat(name, info.synced)).digest != info.digest:
            other = store.record.member(server_id)
            raise CorruptError(
                f"{member.address} and {other.address if other else id_text(server_id)} hold different bytes"
                f" of {claim.directory}/{name}: nothing was appended",
                remedy="compare them with `dos get`, one server at a time; replace the wrong member",
                actual=info.synced,
            )
    size = copy[1].synced
    base = size - size % digest_block_bytes
    digest = (await reader.stat(name, base)).digest if base else 0
    tail = await reader.get(name, base, size - base) if size > base else b""
    return base, digest, tail
