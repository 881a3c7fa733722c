"""`./run bench fairness`: what its greedy clients read is there before the clock starts."""

import fairness
import pytest

from dos_protocol import messages as m
from tests.dos_server.test_shell import serving
from tests.support.fake_disk import FakeDisk
from tests.support.wire import Wire

OBJECTS = 500


def test_every_object_is_durable_before_pages_of_them_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "entries_max", OBJECTS)
    with serving(FakeDisk()) as address, Wire(address) as wire:
        fairness.prepare(address, "list")
        wire.ask(m.ChangeDirectory("many"))
        page = wire.ask(m.List("", "", OBJECTS))
        assert [one.synced for one in page.entries] == [1] * OBJECTS
