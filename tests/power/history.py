"""What a server acknowledged and when, and whether its content after a power failure agrees.

An object is a list of *versions*: content that grows by appends; after a DELETE nothing (None); after a
REPAIR another content. A *fact* says that of a version so many bytes were acknowledged as synced, or were
shown by a read, at a moment. After a power cut at a later moment:

    1  the version of the last fact is there, or one that was asked for after it
    2  with at least the acknowledged bytes, and none that were not written
    3  LIST and CWD show it, with its true size and digest, and not as damaged. Only while a REPAIR was not
       answered yet may it be missing or damaged and known to be: the store was replacing it anyway
    4  a claim that was answered is there, or a later one; the server is the one that it was

It judges, and uses no server, except `observe`, which queries one.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest, prefix_digest

Key = tuple[str, str]
Request = Callable[[m.Message], Any]


class Fact(NamedTuple):
    at: float
    version: int
    size: int


@dataclass
class ObjectHistory:
    """One object. `fold`: the digest of what was sent, for the next append."""

    versions: list[bytearray | None] = field(default_factory=lambda: [bytearray()])
    facts: list[Fact] = field(default_factory=list)
    repairs: set[int] = field(default_factory=set)
    fold: PrefixDigest = field(default_factory=PrefixDigest)

    @property
    def content(self) -> bytearray:
        content = self.versions[-1]
        assert content is not None
        return content

    def grow(self, payload: bytes) -> None:
        self.content.extend(payload)
        self.fold.update(payload)

    def shrink(self, size: int) -> None:
        """What came after is not going to be: its writer was superseded."""
        if size < len(self.content):
            del self.content[size:]
            self.fold = PrefixDigest()
            self.fold.update(bytes(self.content))

    def replace(self, content: bytes | None, *, repair: bool = False) -> None:
        """Another version is asked for; after None the name is free, and an append makes the next one."""
        self.versions.append(None if content is None else bytearray(content))
        if repair:
            self.repairs.add(len(self.versions) - 1)
        self.fold = PrefixDigest()
        self.fold.update(content or b"")

    def acknowledged(self, size: int = 0) -> None:
        """It was acknowledged, now."""
        self.facts.append(Fact(time.monotonic(), len(self.versions) - 1, size))

    def required(self, before: float) -> Fact:
        """The last version acknowledged before a moment, with the most bytes that were acknowledged of it."""
        facts = [(fact.version, fact.size, fact.at) for fact in self.facts if fact.at < before]
        version, size, at = max(facts, default=(0, 0, 0.0))
        return Fact(at, version, size)

    def judge(self, found: bytes | None, *, damaged: bool, before: float) -> str:
        """What is wrong with what was found, nothing (None) or content; empty: nothing is wrong."""
        need = self.required(before)
        later = range(need.version + 1, len(self.versions))
        if damaged or found is None:
            if any(number in self.repairs for number in later):
                return ""
            if damaged:
                return f"shown as damaged, {need.size} bytes were acknowledged"
            gone = any(self.versions[number] is None for number in (need.version, *later))
            return "" if gone or need.size == 0 else f"not there, {need.size} bytes were acknowledged"
        now = self.versions[need.version]
        if now is not None and now.startswith(found) and len(found) >= need.size:
            return ""
        if any(
            one is not None and one.startswith(found) for one in (self.versions[number] for number in later)
        ):
            return ""
        if now is not None and now.startswith(found):
            return f"{len(found)} bytes are there, {need.size} were acknowledged"
        return f"{len(found)} bytes are there that are no state of it; {need.size} were acknowledged"


class Observation(NamedTuple):
    """What a server shows. An object is content, or None when it is shown as damaged."""

    objects: dict[Key, bytes | None]
    epochs: dict[str, int]
    problems: list[str]


@dataclass
class History:
    """Of one server, since its last start on a disk that lost its power."""

    objects: dict[Key, ObjectHistory] = field(default_factory=dict)
    epochs: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    def of(self, directory: str, name: str) -> ObjectHistory:
        return self.objects.setdefault((directory, name), ObjectHistory())

    def claimed(self, directory: str, epoch: int) -> None:
        self.epochs.setdefault(directory, []).append((time.monotonic(), epoch))

    @property
    def acknowledged_bytes(self) -> int:
        return sum(one.required(math.inf).size for one in self.objects.values())

    def violations(self, observation: Observation, before: float = math.inf) -> list[str]:
        """What is not as promised, when the power was cut just before that moment."""
        wrong = list(observation.problems)
        for key, one in self.objects.items():
            damaged = key in observation.objects and observation.objects[key] is None
            if verdict := one.judge(observation.objects.get(key), damaged=damaged, before=before):
                wrong.append(f"{'/'.join(key)}: {verdict}")
        wrong += [
            f"{'/'.join(key)}: nobody wrote it" for key in observation.objects.keys() - self.objects.keys()
        ]
        for directory, claims in self.epochs.items():
            need = max((epoch for at, epoch in claims if at < before), default=0)
            if (found := observation.epochs.get(directory, 0)) < need:
                wrong.append(f"{directory}: epoch {found}, {need} was acknowledged")
        return wrong

    def go_on_from(self, observation: Observation) -> None:
        """What is shown after a cut is durable: from now on it is the history."""
        self.objects.clear()
        self.epochs.clear()
        for (directory, name), content in observation.objects.items():
            assert content is not None
            one = self.of(directory, name)
            one.grow(content)
            one.acknowledged(len(content))
        for directory, epoch in observation.epochs.items():
            self.claimed(directory, epoch)


def observe(request: Request) -> Observation:
    """Everything that a server shows, read to the end, and what it says of it compared with what it is."""
    shown = Observation({}, {}, [])
    names = [entry.name for entry in request(m.List()).entries]
    for directory in names:
        opened = request(m.ChangeDirectory(directory))
        if not isinstance(opened, m.DirectoryOpened):
            shown.problems.append(f"{directory}: {opened}")
            continue
        shown.epochs[directory] = opened.epoch
        if request(m.List()).entries != opened.entries:
            shown.problems.append(f"{directory}: LIST and CWD show different objects")
        for info in opened.entries:
            shown.objects[directory, info.name] = (
                None if info.corrupt else read(request, directory, info, shown)
            )
    return shown


def read(request: Request, directory: str, info: m.ObjectInfo, shown: Observation) -> bytes:
    """The content that GET gives."""
    parts, size = [], 0
    while True:
        data = request(m.Get(info.name, size, 1 << 20))
        if not isinstance(data, m.Data):
            shown.problems.append(f"{directory}/{info.name}: {data}")
            break
        if not data.payload:
            break
        parts.append(bytes(data.payload))
        size += len(data.payload)
    content = b"".join(parts)
    if (info.synced, info.received, info.digest) != (size, size, prefix_digest(content)):
        shown.problems.append(f"{directory}/{info.name}: {size} bytes are read, {info} is shown")
    return content
