"""A client of version 1 without a claim: appends to a file of one server, a few chunks of one length at a
time, without waiting for one before it sends the next (row 40).
"""

from contextlib import suppress

from dos_client.core.window import append_id
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import BrokenConnectionError, NotFoundError, RefusedError
from dos_protocol.messages import Append, DurabilityAck
from tests.sim.store.session import Session
from tests.sim.visitors import LOOSE
from tests.sim.visitors.version0 import NAMES
from tests.sim.visitors.visitor import Visitor

_CHUNK_BYTES = 30
_GET_BYTES = 1 << 20


class Visitor1(Visitor):
    """A visitor of version 1."""

    async def _visit(self, address: str) -> None:
        session = Session(self, self._network, address)
        session.on_durability_ack = self._marked
        session.on_append_refused = self._refused
        try:
            await session.open()
            await session.open_directory(LOOSE)
            for _ in range(self._rng.randint(1, 3)):
                await self._append(session, self._rng.choice(NAMES))
        finally:
            session.fail(BrokenConnectionError("closed"))

    async def _append(self, session: Session, name: str) -> None:
        """It reads what it finds there and continues after it, sometimes late."""
        rng, digest = self._rng, PrefixDigest()
        with suppress(NotFoundError):
            digest.update(await session.get(name, 0, _GET_BYTES))
        await self.sleep(rng.choice([0.0, 0.0, 0.05]))
        for _ in range(rng.randint(1, 4)):
            data = rng.randbytes(_CHUNK_BYTES)
            append = Append(name, digest.size, digest.value, data)
            digest.update(data)
            session.append(append, append_id(1, digest.size))
            await self.sleep(rng.choice([0.0, 0.003, 0.02]))
        await self.sleep(0.05)

    def _marked(self, watermark: DurabilityAck) -> None:
        self.env.sometimes["visitor: appended by version 1"] += 1

    def _refused(self, tag: int, error: RefusedError) -> None:
        self.env.sometimes[f"visitor: append refused, {type(error).__name__}"] += 1
