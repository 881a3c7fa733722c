"""Inputs and outputs on a real server are trimmed to what the regions that read them need; and the commands.

The workers of the regions are threads, so that segments can be short.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio

from checkpoint import limits as checkpoint_limits
from checkpoint.coordinator.control import RegionControl
from checkpoint.core.region import RegionSpec
from dataflow import Graph, InputSource, LogSink, LogSource, SchemaError, blocking, collect_output
from dataflow.errors import NoOutputError
from dos_client import init_store
from dos_client.blocking import open_store as open_blocking
from tests.dataflow.producer_process import SCHEMA, rows_of
from tests.dataflow.test_region_processes import WAIT_S
from tests.dataflow.test_region_snapshots import running_in_threads
from tests.dataflow.test_region_trim import dos
from tests.support import polling
from tests.support.examples import run_example
from tests.support.parts import with_long
from tests.support.servers import ServerProcess, one_server

__all__ = ["one_server"]
pytestmark = pytest.mark.process
ROWS = 500
"""Of a batch; a segment of the input has two or three batches."""

until = partial(polling.until, within_s=WAIT_S)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_limits, "input_segment_bytes_max", 20_000)
    monkeypatch.setattr(checkpoint_limits, "output_segment_bytes_max", 20_000)
    monkeypatch.setattr(checkpoint_limits, "trim_poll_s", 0.1)


def source(begin: str) -> InputSource:
    return InputSource("numbers", SCHEMA, begin=begin)


@contextmanager
def region(
    url: str,
    name: str,
    *,
    begin: str = "first",
    sink: LogSink | None = None,
    reads: Callable[[str], InputSource | LogSource] = source,
) -> Iterator[RegionControl]:
    """A region of one worker, a thread, that reads the input `numbers` of the application `shop`."""
    graph = Graph(name)
    graph.source("taken", reads(begin)).sink("shown", sink or LogSink())
    spec = RegionSpec(
        name=name,
        workers=1,
        store_url=url,
        job_key=b"k" * 32,
        operators=graph.plan().operators,
        checkpoint_interval_s=0.1,
        retain=2,
    )
    with running_in_threads(graph, spec) as control:
        yield control


class Input:
    """The input and its one producer, `p`."""

    def __init__(self, server: ServerProcess, producer: blocking.BlockingProducer) -> None:
        self.server, self.producer, self.sent = server, producer, 0

    def send(self, batches: int) -> None:
        for _ in range(batches):
            self.producer.wait_recorded(self.producer.send(rows_of("p", self.sent, ROWS)))
            self.sent += ROWS

    def status(self) -> dict[str, Any]:
        done = dos("input", "consumers", self.server.url, "shop", "numbers", "--json")
        assert done.exit_code == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def consumer(self, name: str) -> dict[str, int]:
        (one,) = [one for one in self.status()["consumers"] if one["region"] == name]
        found: dict[str, int] = one["positions"]["p"]
        return found

    def lag(self, name: str) -> float:
        """What the last checkpoint of a region has not read; much if it is not registered yet."""
        if name not in [one["region"] for one in self.status()["consumers"]]:
            return math.inf
        return self.consumer(name)["lagBytes"]

    @property
    def stored_from(self) -> int:
        return int(self.status()["splits"][0]["begin"])

    def on_disk(self) -> int:
        size = 0
        for path in self.server.data.rglob("*"):
            if "shop.in.numbers.p" in str(path):
                with suppress(FileNotFoundError):  # the server deletes meanwhile
                    size += path.stat().st_size if path.is_file() else 0
        return size


def until_trimmed(reached: Callable[[], bool], *regions: RegionControl) -> None:
    """Commit checkpoints until older ones are released, and what they needed is trimmed. An idle region
    commits none automatically.
    """

    def committed() -> bool:
        for one in regions:
            one.checkpoint(WAIT_S)
        return reached()

    until(committed, "what is read is trimmed")


def read_all(input_: Input, *names: str) -> None:
    """Until the last checkpoints of these regions have all rows. The start of a segment, which is longer than
    nothing and shorter than a batch, may follow.
    """
    for name in names:
        until(lambda name=name: input_.lag(name) < 2_000, f"{name} reads all")  # type: ignore[misc]


# EVIDENCE-OF: P-6
def test_an_input_stays_as_small_as_the_slowest_region_allows(one_server: ServerProcess) -> None:
    url = one_server.url
    trio.run(lambda: init_store(url))
    with (
        open_blocking(url) as store,
        blocking.open_producer(store, "shop", "numbers", "p", SCHEMA) as producer,
    ):
        input_ = Input(one_server, producer)
        input_.send(10)
        assert dos("input", "consumers", url, "shop", "numbers").stdout.count("no region is registered") == 1
        with region(url, "left") as left:
            with region(url, "right") as right:
                sizes = []
                for _ in range(3):
                    input_.send(10)
                    until_trimmed(lambda: input_.on_disk() < 60_000, left, right)
                    sizes.append(input_.on_disk())
                written = input_.status()["splits"][0]["end"]
                assert max(sizes) < 60_000 < written / 3, sizes

            # One of them is stopped: nothing that it needs is deleted, however far the other one is.
            needs = input_.consumer("right")["needs"]
            input_.send(30)
            read_all(input_, "left")
            assert input_.stored_from <= needs
            assert input_.on_disk() > 3 * max(sizes)
            with region(url, "right") as right:
                until_trimmed(lambda: input_.on_disk() < 60_000, left, right)
                running = dos("input", "forget", url, "shop", "numbers", "right", "--apply")
                assert (running.exit_code, "region 'right' is running" in running.stderr) == (1, True)
                running = dos("region", "release", url, "right")
                assert (running.exit_code, "region 'right' is running" in running.stderr) == (1, True)
            for name in ("left", "right"):
                table = collect_output(url, name, "shown")
                assert table is not None
                assert table["number"].to_pylist() == list(range(len(table)))
            assert table.num_rows == input_.sent

            # It is gone for ever.
            input_.send(20)
            read_all(input_, "left")
            until_trimmed(lambda: input_.consumer("left")["needs"] == input_.consumer("left")["read"], left)
            forget = ("input", "forget", url, "shop", "numbers", "right", "--timeout", 0.5)
            dry = json.loads(dos(*forget, "--json").stdout)
            assert (dry["forgotten"], dry["bytes"] > 50_000) == (False, True)
            assert dos(*forget, "--apply").exit_code == 0
            assert dos(*forget).exit_code == 1, "it is registered no more"
            until_trimmed(lambda: input_.on_disk() < 60_000, left)

            # A region that is started again after all, and a new one, fail and name what is gone.
            for name in ("right", "new"):
                with region(url, name) as control:
                    until(lambda: control.exception() is not None, "it needs what is gone")
                    said = str(control.exception())
                assert "of producer 'p' of input 'numbers' of 'shop' were trimmed and are gone" in said
                assert "registered now are: left" in said
            assert dos(*(*forget[:5], "new", *forget[6:]), "--apply").exit_code == 0
            assert dos(*forget, "--apply").exit_code == 0
            with region(url, "late", begin="retained"):
                read_all(input_, "late")
            late = collect_output(url, "late", "shown")
            assert late is not None
            assert late["number"].to_pylist() == list(range(input_.sent - len(late), input_.sent))


def test_inputs_without_a_running_producer_are_trimmed_by_command_and_limits_by_rule(
    one_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = one_server.url
    trio.run(lambda: init_store(url))
    monkeypatch.setattr(checkpoint_limits, "trim_poll_s", 1_000)  # the producer dies before it deletes
    with (
        open_blocking(url) as store,
        blocking.open_producer(store, "shop", "numbers", "p", SCHEMA) as producer,
    ):
        input_ = Input(one_server, producer)
        input_.send(20)
        with region(url, "left") as left:
            read_all(input_, "left")
            for _ in range(2):
                left.checkpoint(WAIT_S)
    listed = json.loads(dos("input", "trim", url, "shop", "numbers", "--json").stdout)
    assert len(listed["garbage"]) >= 5
    assert listed["deleted"] is False
    assert json.loads(dos("input", "trim", url, "shop", "numbers", "--json").stdout) == listed
    half = dos("input", "trim", url, "shop", "numbers", "--apply")
    assert (half.exit_code, "pass --apply and --stopped" in half.stderr) == (2, True)
    done = dos("input", "trim", url, "shop", "numbers", "--apply", "--stopped")
    assert (done.exit_code, f"deleted {len(listed['garbage'])} segments" in done.stdout) == (0, True)
    assert "nothing to delete" in dos("input", "trim", url, "shop", "numbers").stdout
    assert dos("input", "trim", url, "shop", "nothing").exit_code == 1

    shown = dos("input", "retain", url, "shop", "numbers")
    assert (shown.exit_code, shown.stdout.startswith("rule: the default: what every")) == (0, True)
    rule = ("input", "retain", url, "shop", "numbers")
    assert dos(*rule, "--max-bytes", 1, "--default").exit_code == 2
    assert dos(*rule, "--keep", "some").exit_code == 2
    done = dos(*rule, "--max-bytes", 1, "--max-age", 3600, "--json")
    assert (json.loads(done.stdout)["maxBytes"], json.loads(done.stdout)["maxAgeSeconds"]) == (1, 3600.0)
    assert "limit: at most 1 bytes and at most 3600 s, even if a consumer needs more" in dos(*rule).stdout
    assert dos(*rule, "--default").exit_code == 0
    assert dos(*rule).stdout.startswith("rule: the default")


def test_a_restore_is_refused_if_a_limit_has_deleted_the_input_that_it_needs(
    one_server: ServerProcess,
) -> None:
    url = one_server.url
    trio.run(lambda: init_store(url))
    with (
        open_blocking(url) as store,
        blocking.open_producer(store, "shop", "numbers", "p", SCHEMA) as producer,
    ):
        input_ = Input(one_server, producer)
        input_.send(2)
        with region(url, "left") as left:
            read_all(input_, "left")
            left.checkpoint(WAIT_S)
            left.savepoint("early", timeout=WAIT_S)
            input_.send(20)
            read_all(input_, "left")
    to = ("region", "restore", url, "left", "--to", "savepoint:early", "--allow-republish")
    dry = json.loads(dos(*to, "--dry-run", "--json").stdout)
    assert (dry["trimmed"], dry["steps"] > 0) == ([], True), "the savepoint keeps its input"
    dos("input", "retain", url, "shop", "numbers", "--max-bytes", 1)
    assert dos("input", "trim", url, "shop", "numbers", "--apply", "--stopped").exit_code == 0
    (missing,) = json.loads(dos(*to, "--dry-run", "--json").stdout)["trimmed"]
    assert (missing["source"], missing["split"]) == ("taken", "p")
    assert missing["needs"] < missing["begin"]
    refused = dos(*to, "--stopped")
    text = f"not there any more: 'taken' needs split p from {missing['needs']:,} on"
    assert (refused.exit_code, text in refused.stderr) == (1, True), refused.stderr


# EVIDENCE-OF: P-6
@pytest.mark.parametrize("publish", with_long(["checkpoint"], ["step"]))
def test_an_output_is_trimmed_to_what_its_readers_need(one_server: ServerProcess, publish: str) -> None:
    url = one_server.url
    trio.run(lambda: init_store(url))
    sink = LogSink(publish=publish, retain="unread")

    def log(begin: str) -> LogSource:
        return LogSource("shown", SCHEMA, region="above", begin=begin)

    def stored() -> dict[str, int]:
        done = dos("output", "consumers", url, "above", "shown", "--json")
        assert done.exit_code == 0, done.stderr
        found: dict[str, int] = json.loads(done.stdout)["splits"][0]
        return found

    def size(split: dict[str, int]) -> int:
        return split["end"] - split["begin"]

    def trimmed() -> bool:
        # A consumer needs the segment with the last row that it has read, which is long if one step took many
        # batches: it reads on.
        input_.send(1)
        return size(stored()) < 60_000

    def numbers(name: str) -> list[int]:
        try:
            table = collect_output(url, name, "shown")
        except NoOutputError:
            return []  # it has not begun
        return [] if table is None else table["number"].to_pylist()

    with (
        open_blocking(url) as store,
        blocking.open_producer(store, "shop", "numbers", "p", SCHEMA) as producer,
    ):
        input_ = Input(one_server, producer)
        with region(url, "above", sink=sink):
            input_.send(1)
            until(lambda: dos("output", "consumers", url, "above", "shown").exit_code == 0, "it runs")
        with region(url, "below", reads=log) as below:
            for _ in range(2):
                # The region above is stopped and started again: it restores a log without a beginning.
                with region(url, "above", sink=sink) as above:
                    input_.send(20)
                    until(lambda: len(numbers("below")) == input_.sent, "all is read")
                    until_trimmed(trimmed, above, below)
                    until(lambda: len(numbers("below")) == input_.sent, "the rest is read")
            assert numbers("below") == list(range(input_.sent))
        left = numbers("above")
        assert left == list(range(input_.sent - len(left), input_.sent))
        assert 0 < len(left) < input_.sent // 2

        # Nobody reads it now: nothing more is deleted.
        with region(url, "above", sink=sink):
            input_.send(30)
            until(lambda: numbers("above")[-1] == input_.sent - 1, "all is there")
        kept = len(numbers("above"))
        assert kept >= 30 * ROWS
        done = dos("output", "trim", url, "above", "shown", "--apply", "--stopped")
        assert done.exit_code == 0, done.stderr
        assert len(numbers("above")) >= 30 * ROWS
        with region(url, "below", reads=log):
            until(lambda: len(numbers("below")) == input_.sent, "the reader continues where it was")
        assert numbers("below") == list(range(input_.sent))

        with region(url, "new", reads=log) as control:
            until(lambda: control.exception() is not None, "its beginning is gone")
            said = str(control.exception())
        assert "of the log w0000 of output 'shown' of region 'above' were trimmed and are gone" in said
        assert 'LogSource(..., begin="retained")' in said
        with region(url, "late", reads=log, begin="retained"):
            until(lambda: numbers("late") == numbers("above"), "it begins with what is retained")
    assert dos("output", "retain", url, "above", "shown", "--keep", "all").exit_code == 0
    assert "keeps everything" in dos("output", "retain", url, "above", "shown").stdout
    assert dos("output", "consumers", url, "above", "nothing").exit_code == 1
    assert dos("output", "consumers", url, "nobody", "shown").exit_code == 1


def test_what_the_pages_write_is_accepted() -> None:
    names = run_example("docs/inputs.md", "retained")
    graph = names["graph"]
    assert graph.plan is not None
    sink = run_example("docs/going-back.md", "retain")["sink"]
    assert (sink.rule.by_consumers, sink.rule.bytes_max, sink.rule.age_max_s) == (True, None, 604_800)
    assert not LogSink().rule.by_consumers, "outputs are kept unless the sink says otherwise"
    for wrong in ({"retain": "some"}, {"max_bytes": 0}, {"max_age": -1.0}):
        with pytest.raises(SchemaError):
            LogSink(**wrong)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="begin must be 'first' or 'retained', not 'last'"):
        InputSource("numbers", SCHEMA, begin="last")
