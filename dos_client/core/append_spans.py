"""The span of one append, from the acks of the members. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dos_monitoring import Attribute, SpanRecord


@dataclass(slots=True)
class AckTimes:
    """When what happened to one append, in seconds since it was made. By the id of each member."""

    size: int
    """Its end in the object."""
    received_s: dict[bytes, float] = field(default_factory=dict)
    synced_s: dict[bytes, float] = field(default_factory=dict)
    quorum_s: float | None = None

    def note(self, server_id: bytes, received: int, synced: int, at_s: float) -> None:
        """Note that a member has received and synced the object up to these sizes."""
        if received >= self.size:
            self.received_s.setdefault(server_id, at_s)
        if synced >= self.size:
            self.synced_s.setdefault(server_id, at_s)

    def note_quorum(self, synced: int, at_s: float) -> None:
        """Note that a quorum has synced the object up to this size."""
        if synced >= self.size and self.quorum_s is None:
            self.quorum_s = at_s

    def span(self, directory: str, name: str, members: Mapping[bytes, str], end_s: float) -> SpanRecord:
        """Return the trace, which ends now. members: the address of each member."""
        acks = tuple(self._ack(server_id, address, end_s) for server_id, address in members.items())
        quorum_s = end_s if self.quorum_s is None else self.quorum_s
        quorum = SpanRecord("dos.append.quorum", 0.0, quorum_s, error="no quorum" * (self.quorum_s is None))
        attributes: dict[str, Attribute] = {
            "dos.directory": directory,
            "dos.object": name,
            "dos.size": self.size,
        }
        return SpanRecord("dos.append", 0.0, end_s, attributes, (*acks, quorum))

    def _ack(self, server_id: bytes, address: str, end_s: float) -> SpanRecord:
        attributes: dict[str, Attribute] = {"dos.member": address}
        if server_id in self.received_s:
            attributes["dos.received_s"] = self.received_s[server_id]
        synced_s = self.synced_s.get(server_id)
        error = "" if synced_s is not None else "it has not synced until the end of this trace"
        return SpanRecord("dos.append.member", 0.0, synced_s or end_s, attributes, error=error)
