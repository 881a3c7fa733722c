"""A gateway in a thread of the test, and the requests that it answered, as golden text."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

import pytest

from dos_gateway import webhdfs
from dos_gateway.core.confs import client_confs, logical_name
from tests.dos_gateway.gateways import threaded_gateway

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"(?<![a-zA-Z\d])\d+")
_SHOWN = ("overwrite", "renameoptions", "recursive", "noredirect", "data", "createparent")
"""Parameters whose values change what is done; of others, the name is shown."""


class Request(NamedTuple):
    """A request that was answered."""

    method: str
    op: str
    path: str
    query: dict[str, str]
    code: int
    body: str

    @property
    def parameters(self) -> str:
        """How the operation is called, the same for each path."""
        names = [f"{name}={self.query[name]}" if name in _SHOWN else name for name in sorted(self.query)]
        return f"{self.method} {self.op} {' '.join(names)}{self.body}"

    def commits(self) -> bool:
        """Return whether a micro-batch ends with it."""
        return self.op == "RENAME" and "/commits/" in self.query["destination"]


class RecordingGateway(NamedTuple):
    """place: the URL of its tree. requests: those that were answered, in the order of the answers."""

    place: str
    confs: dict[str, str]
    requests: list[Request]


@contextmanager
def recording_gateway(url: str, tree: str) -> Iterator[RecordingGateway]:
    """Run a gateway that keeps its requests. A request that a standby sends on is not kept: a client repeats
    it until it is answered.
    """
    requests: list[Request] = []

    class Recording(webhdfs._Connection):
        asked: webhdfs._Head

        async def _one(self, event: webhdfs._Head) -> None:
            self.asked = event
            await super()._one(event)

        async def _send(self, reply: webhdfs.FileReply) -> None:
            if b"StandbyException" not in webhdfs._encode(reply.json):
                requests.append(request_of(self.asked, reply.code))  # before the next one can be sent
            await super()._send(reply)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webhdfs, "_Connection", Recording)
        with threaded_gateway(url, tree) as (port, store_id):
            name = logical_name(store_id, tree)
            yield RecordingGateway(f"webhdfs://{name}", client_confs(name, [f"127.0.0.1:{port}"]), requests)


def request_of(event: webhdfs._Head, code: int) -> Request:
    path, _, query = event.target.decode("ascii").partition("?")
    headers = event.headers
    body = " body" if headers.get(b"content-length", b"0") != b"0" else ""
    body += "".join(
        f" {name.decode()}: {headers[name].decode()}"
        for name in (b"transfer-encoding", b"expect")
        if name in headers
    )
    parameters = {name.lower(): value for name, value in parse_qsl(query, keep_blank_values=True)}
    op = parameters.pop("op", "")
    return Request(
        event.method.decode(), op, unquote(path.removeprefix("/webhdfs/v1")), parameters, code, body
    )


def golden_text(requests: Iterable[Request], root: str) -> str:
    """Return how the operations are called, and what each micro-batch asks for: the first one and the one
    after a restart by operation, others by path. Nothing has an order, because tasks ask at the same time.

    root: the path that is left out. Numbers and UUIDs are replaced.
    """
    requests = list(requests)
    ends = [number for number, one in enumerate(requests) if one.commits()]
    begins = [0, *(end + 1 for end in ends[:-1])]
    batches = [requests[begin:end] for begin, end in zip(begins, [*begins[1:], None], strict=True)]
    lines = sorted({one.parameters for one in requests})
    details: list[str] = []
    for number, batch in enumerate(batches):
        lines.append(f"micro-batch {number}: {len(batch)} requests")
        before, details = details, _by_path(batch, root)
        if number in (0, len(batches) - 1):
            counts = Counter(one.op for one in batch)
            lines.append("  " + ", ".join(f"{count} {op}" for op, count in sorted(counts.items())))
        else:
            lines += ["  as the one before"] if details == before else details
    return "".join(f"  {line}\n" for line in lines)


def _by_path(batch: list[Request], root: str) -> list[str]:
    by_path: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for one in batch:
        target = f" to {_plain(one.query['destination'], root)}" if "destination" in one.query else ""
        by_path[_plain(one.path, root)][f"{one.op} {one.code}{target}"] += 1
    return [
        f"  {path}: {', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}"
        for path, counts in sorted(by_path.items())
    ]


def _plain(path: str, root: str) -> str:
    path = _UUID.sub("UUID", path.removeprefix(root))
    return _NUMBER.sub("N", re.sub(r"TID\d+", "TID", path)) or "/"
