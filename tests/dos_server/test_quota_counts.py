"""The count of what quotas limit is that of a recount; and bugs of quotas that tests find."""

import errno
import random
from typing import Any

import pytest

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_server.core import quotas, tables
from dos_server.core import server_core as server_module
from dos_server.core.quotas import Quota, StoredUsage
from dos_server.core.requests import appends, claims, removals, repairs
from dos_server.limits import log_reserved_bytes
from tests.dos_server import test_quotas
from tests.dos_server.test_quotas import (
    DIRECTORIES,
    IN_SHOP,
    Writer,
    code_of,
    quotas_of,
    recounted,
    repaired,
    server_with,
    used,
)
from tests.support.planted_source import planted


def play(seed: int, slot_bytes: int) -> int:
    """Random requests, faults and restarts: the count is that of a recount, and no quota is exceeded. Returns
    how many requests the quotas refused.
    """
    rng = random.Random(seed)
    limits = (Quota("shop", bytes_max=400, objects_max=4), Quota("*", bytes_max=2_000))
    server = server_with(*limits, slot_bytes=slot_bytes)
    server.slow_writes = rng.random() < 0.3
    refused = over = 0
    writers = {directory: Writer(server, directory) for directory in DIRECTORIES}
    for _ in range(60):
        directory = rng.choice(DIRECTORIES)
        writer, name = writers[directory], rng.choice("abc")
        match rng.randrange(12):
            case 0 | 1:
                server.ask(writer.session, m.Delete(name))
            case 2:
                server.disk.fail("write", rng.choice([errno.ENOSPC, errno.EMFILE]))
                writer.append(name, bytes(10))
                server.disk.heal()
            case 3:
                repaired(server, directory, name, bytes(rng.randrange(200)))
                writers[directory] = Writer(server, directory)
            case 4:
                server.settle()
                server.start()
                writers = {one: Writer(server, one) for one in DIRECTORIES}
            case 5:
                server.send(writer.session, writer.request(name, bytes(30)), ends_batch=False)
            case _:
                data = bytes(rng.randrange(120))
                before = used(server, "bytes")
                answer = writer.append(name, data)
                if code_of(answer) is ErrorCode.QUOTA_EXCEEDED:
                    refused += 1
                elif directory in IN_SHOP and answer is None and data:
                    over += before + len(data) > 400
        counted = {name: quotas_of(server).usage_of(name) for name in DIRECTORIES}
        there = recounted(server)
        for name in DIRECTORIES:
            assert counted[name] == there.get(name, StoredUsage()), name
        total = sum(counted[name].bytes for name in IN_SHOP)
        assert (used(server, "bytes"), used(server, "objects")) == (
            total,
            sum(counted[name].objects for name in IN_SHOP),
        )
        assert used(server, "bytes", "*") == sum(one.bytes for one in counted.values())
        assert used_sessions(server) == quotas_of(server)._sessions
    assert not over, "an append that was accepted fits"
    server.settle()
    return refused


def used_sessions(server: Any) -> dict[str, int]:
    """How many sessions are in, or enter, each directory."""
    found: dict[str, int] = {}
    for one in server.core._tables.sessions.values():
        for place in (one.directory, one.opening):
            if place is not None:
                found[place] = found.get(place, 0) + 1
    return found


@pytest.mark.parametrize("slot_bytes", [0, log_reserved_bytes + 65_536], ids=["without a log", "with a log"])
def test_the_count_is_that_of_a_recount_whatever_happens(slot_bytes: int) -> None:
    assert sum(play(seed, slot_bytes) for seed in range(8)) > 20


BUGS: dict[str, tuple[Any, str, str, str]] = {
    "a deletion makes no room": (
        removals,
        "Removals",
        "tables.quotas.add(directory.name, -state.accepted, -1)",
        "pass",
    ),
    "a deletion makes room before it is done": (
        removals,
        "Removals",
        "state.removing = True\n",
        "state.removing = not self._tables.quotas.add(directory.name, -state.accepted, -1)\n",
    ),
    "the bytes of a refused write stay counted": (
        appends,
        "Appends",
        "self._tables.quotas.add(directory.name, -sum(map(_bytes_of, refused)), -(not state.exists))",
        "pass",
    ),
    "an object whose first write is refused stays counted": (
        appends,
        "Appends",
        "-sum(map(_bytes_of, refused)), -(not state.exists))",
        "-sum(map(_bytes_of, refused)), 0)",
    ),
    "a repair is not counted": (
        repairs,
        "Repairs",
        "tables.quotas.add(directory.name, event.found.size - old.accepted)",
        "pass",
    ),
    "a repair is refused": (
        repairs,
        "Repairs",
        "            full = tables.refuses_object(directory) if state is None else None\n",
        "            full = tables.quotas.refuses(directory.name, request.goal_size, state is None)\n",
    ),
    "an append is counted and then refused": (
        tables,
        "Tables",
        "        if refusal is not None:\n            return refusal\n        wanted",
        (
            "        if self.quotas.add(state.directory, count, new) or refusal:\n"
            "            return refusal\n        wanted"
        ),
    ),
    "what finds no disk space stays counted": (
        tables,
        "Tables",
        "        if self.space.take(wanted):\n            self.quotas.add(state.directory, count, new)\n",
        "        self.quotas.add(state.directory, count, new)\n        if self.space.take(wanted):\n",
    ),
    "a session that left stays counted": (
        tables,
        "Tables",
        "        self.quotas.move(session.directory, None)\n",
        "",
    ),
    "a session that waits is not counted": (
        claims,
        "Claims",
        "        tables.quotas.move(None, request.directory)\n",
        "",
    ),
    "a run is not limited": (
        appends,
        "take_entries",
        "if accepted_bytes + count > room_bytes or not",
        "if not",
    ),
    "a run is not counted": (
        appends,
        "take_entries",
        "        tables.quotas.add(directory.name, accepted_bytes)\n",
        "",
    ),
    "a run is not among the requests": (
        appends,
        "take_entries",
        "        tables.quotas.spend(directory.name, index - start, tables.now)\n",
        "",
    ),
    "the limit itself is too much": (
        quotas,
        "Quotas",
        "rule.bytes + count_bytes > limit",
        "rule.bytes + count_bytes >= limit",
    ),
    "checked after it is stored": (
        quotas,
        "Quotas",
        "rule.bytes + count_bytes > limit",
        "rule.bytes > limit",
    ),
    "a full quota refuses appends without bytes": (
        quotas,
        "Quotas",
        "objects > 0 and rule.objects",
        "rule.objects",
    ),
    "only the first quota of a directory counts": (
        quotas,
        "Quotas",
        "tuple(rule for rule in self._rules if rule.quota.covers(directory))",
        "tuple(rule for rule in self._rules if rule.quota.covers(directory))[:1]",
    ),
    "new quotas begin with nothing used": (
        quotas,
        "Quotas",
        "        for directory, usage in self._usage.items():\n            self._add(",
        "        for directory, usage in ():\n            self._add(",
    ),
    "who is inside cannot move": (quotas, "Quotas", "rule not in inside and ", ""),
    "the burst is never used up": (quotas, "Quotas", "rule.allowance -= requests", "pass"),
}
"""Name -> module, class or function, source with `before` replaced by `after`."""


def play_all() -> None:
    for test in (
        test_quotas.test_an_append_above_the_quota_is_refused_whole_and_deletion_makes_room,
        test_quotas.test_objects_are_limited_and_one_that_exists_takes_further_bytes,
        test_quotas.test_a_run_of_appends_ends_at_the_quota,
        test_quotas.test_a_repair_is_counted_and_never_refused,
        test_quotas.test_connections_are_counted_where_they_are,
        test_quotas.test_above_the_rate_a_session_is_not_read_until_the_rate_permits_it,
        test_quotas.test_other_quotas_take_effect_at_once_and_nothing_that_is_stored_is_touched,
        test_quotas.test_an_append_that_finds_no_disk_space_is_not_counted,
        lambda: play(1, 0),
    ):
        test()


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, before, after = BUGS[bug]
    wrong = planted(module, before, after)[name]
    if isinstance(wrong, type):
        for attribute, value in vars(wrong).items():
            if callable(value) or isinstance(value, property):
                monkeypatch.setattr(getattr(module, name), attribute, value)
    else:
        monkeypatch.setattr(server_module, name, wrong)
    with pytest.raises(AssertionError):
        play_all()
