"""The simulation of applications over sites: its output is that of the plain application, by every way."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dataflow.core import duplicate_filter
from sites.core.deployment import Deployment, RegionReplica, StreamReplica, make_plan
from tests.sites.simulation import engine
from tests.sites.simulation import entry as entry_module
from tests.sites.simulation.__main__ import app
from tests.sites.simulation.engine import Options, simulate
from tests.sites.simulation.entry import EntryStore, entry_members
from tests.sites.simulation.flow import Activity, BadOptionError, Flow, by_arithmetic, by_filter
from tests.sites.simulation.generator import Generator
from tests.sites.simulation.network import Network
from tests.sites.simulation.query import APPLICATIONS, INTERVAL_S, JOINS, describe, rows_of
from tests.sites.simulation.report import figures, tail
from tests.sites.simulation.techniques import FAILS_S, SPIKE_S, compare
from tests.sites.simulation.trace import UNREACHABLE, Trace, write_trace
from tests.support.planted_source import planted

SERVERS = 12


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "trace"
    generator = Generator(2, SERVERS, 1)
    write_trace(path, generator.header, generator.delays())
    return path


@pytest.fixture
def network(path: Path) -> Network:
    network = Network(Trace(path))
    network.load(0)
    return network


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_filters_pass_each_row_once_when_the_first_replica_has_it(network: Network, seed: int) -> None:
    """`by_filter` refuses a row that is passed twice or never."""
    description = describe(network, seed, 3, distance_ms=5.0)
    deployment = Deployment(description, make_plan(description).replicas)
    streams = {one: Activity() for one in deployment.streams()}
    rounds = 36_000 * (seed - 1) / 2 + np.arange(12) * INTERVAL_S
    flow = Flow(network, deployment)
    passed = flow.run(rounds, streams, by_filter)
    computed = flow.run(rounds, streams, by_arithmetic)
    assert passed.ready.keys() == computed.ready.keys()
    for one, times in computed.ready.items():
        assert np.array_equal(passed.ready[one], times), f"rows and marks of {one}"
    for one in deployment.exits():
        assert np.isfinite(passed.ready[one]).all(), "no row is lost"
        assert passed.ready[one].shape == (12, len(rows_of(one.node, SERVERS)) + 1)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_entry_points_record_passes_the_filters_once(network: Network, seed: int) -> None:
    description = describe(network, seed, 2, distance_ms=5.0)
    deployment = Deployment(description, make_plan(description).replicas)
    entry = EntryStore(network, entry_members(description, 3), seed)
    flow = Flow(network, deployment, entry)
    rounds = np.arange(12) * INTERVAL_S
    passed = flow.run(rounds, {one: Activity() for one in deployment.streams()}, by_filter)
    for one in deployment.exits():
        rows, marks = passed.ready[one][:, :-1], passed.ready[one][:, -1]
        assert np.isfinite(passed.ready[one]).all(), "no row is lost"
        assert (rows.max(axis=1) <= marks).all(), "a mark comes after its rows"


def test_a_reader_sees_what_a_majority_of_the_entry_store_has_told_it(network: Network) -> None:
    entry = EntryStore(network, entry_members(describe(network, 1, 2), 3), 1)
    assert len({*entry.members}) == 3
    source, reader = network.servers[0], network.servers[-1]
    told = []
    for member in entry.members:
        there = network.arrive(network.links([source], member), np.array([50.0]))
        told += network.arrive(network.links([member], reader), there).tolist()
    seen = entry.visible([source], reader, np.array([[50.0]]))
    assert seen.item() == sorted(told)[1]


def test_a_row_that_is_seen_before_a_majority_has_it_is_found(network: Network) -> None:
    broken = planted(entry_module, "[self._majority - 1]", "[0]")["EntryStore"]
    entry = EntryStore(network, network.servers[:3], 1)
    early = broken(network, network.servers[:3], 1)
    sent, reader = np.array([[50.0]]), network.servers[-1]
    assert early.visible(network.servers[5:6], reader, sent) < entry.visible(
        network.servers[5:6], reader, sent
    )


def test_an_entry_point_marks_each_row_within_its_interval_and_never_before_it(network: Network) -> None:
    entry = EntryStore(network, network.servers[:3], 1)
    rounds = np.arange(20) * INTERVAL_S + 0.4
    marked = entry.marked(network.servers, rounds) - rounds[:, None]
    assert (marked > 0).all()
    assert (marked <= 1.0 + 1e-6).all()


BUGS = {
    "copies pass twice": ("passes[order] = given > before", "passes[order] = given >= before"),
    "the first stream only": (
        "take(stream, digests[part], ranks)\n",
        "take(stream, digests[part], ranks)\n            passes &= stream == '0'\n",
    ),
    "the mark is before its rows": (
        "            self._rise(highest)\n",
        "            self._rise(highest + (1 << 30))\n",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_filter_with_a_bug_is_found(network: Network, bug: str) -> None:
    make = planted(duplicate_filter, *BUGS[bug])["DuplicateFilter"]
    arrived = np.array([[[1.0, 2.0, 3.0], [11.0, 12.0, 13.0]], [[1.5, 1.2, 4.0], [11.5, 11.2, 14.0]]])
    rounds = np.array([0.0, 10.0])
    with pytest.raises((BadOptionError, AssertionError)):
        assert np.array_equal(by_filter(rounds, arrived, make), by_arithmetic(rounds, arrived))
    assert np.array_equal(by_filter(rounds, arrived), by_arithmetic(rounds, arrived))


def test_a_row_that_no_stream_has_is_not_passed_and_not_missed() -> None:
    arrived = np.array([[[1.0, np.inf, np.inf]], [[2.0, np.inf, np.inf]]])
    assert by_filter(np.zeros(1), arrived).tolist() == [[1.0, np.inf, np.inf]]


@pytest.mark.parametrize("seed", [1, 2])
def test_each_application_gets_every_row_of_its_servers_with_and_without_replicas(
    network: Network, seed: int
) -> None:
    counts = [len(rows_of(f"application-{one}", SERVERS)) for one in range(APPLICATIONS)]
    plain = Options(seed, hours=0.3)
    for options in (plain, replace(plain, random=True), replace(plain, collect=0.5, revive=True)):
        for kmax in (1, 2):
            run = simulate(network, describe(network, seed, kmax, distance_ms=5.0), options)
            assert run.latencies_s.shape == (108, sum(counts))
            assert np.isfinite(run.latencies_s).all(), "no row is lost"
            assert (run.latencies_s >= 0).all()


def test_replicas_never_make_a_row_later(network: Network) -> None:
    """The places of one replica are kept when there are more."""
    one, three = (
        simulate(network, describe(network, 1, kmax, distance_ms=5.0), Options(1, hours=6.0))
        for kmax in (1, 3)
    )
    assert all(three.replicas[region][:1] == sites for region, sites in one.replicas.items())
    assert (three.latencies_s <= one.latencies_s).all()
    assert figures(three)["meanS"] < figures(one)["meanS"]


def test_the_same_seed_gives_the_same_run(network: Network) -> None:
    options = Options(1, hours=0.2, collect=0.5, revive=True)
    runs = [simulate(network, describe(network, 1, 2, distance_ms=5.0), options) for _ in range(2)]
    assert np.array_equal(runs[0].latencies_s, runs[1].latencies_s)
    assert runs[0].costs == runs[1].costs
    other = simulate(network, describe(network, 5, 2, distance_ms=5.0), options)
    assert not np.array_equal(other.latencies_s, runs[0].latencies_s)


def test_bandwidth_grows_as_in_the_paper(network: Network) -> None:
    rates = []
    for kmax in (1, 2, 3):
        description = describe(network, 1, kmax, distance_ms=0.0)
        rates.append(make_plan(description).bytes_per_s)
    assert rates[1] / rates[0] == pytest.approx(3.22, abs=0.01)
    assert rates[2] / rates[0] == pytest.approx(6.67, abs=0.01)
    assert sum(len(rows_of(f"joined-{one}", SERVERS)) for one in range(JOINS)) == SERVERS


def test_collection_stops_at_theta_and_lowers_the_cost(network: Network) -> None:
    description = describe(network, 1, 2, distance_ms=5.0)
    static = simulate(network, description, Options(1, hours=1.0))
    run = simulate(network, description, Options(1, hours=1.0, collect=0.7))
    assert run.collected > 0
    assert run.costs[0] == pytest.approx(static.cost)
    assert run.costs[-1] < static.cost
    assert run.costs == sorted(run.costs, reverse=True)
    assert (run.latencies_s >= static.latencies_s).all(), "fewer streams are never faster"


def a_far_exit(deployment: Deployment) -> tuple[RegionReplica, list[StreamReplica]]:
    """Return an exit that is at no site of the filter that it reads, and its two streams."""
    for exit_ in deployment.exits():
        streams = [one for one in deployment.streams() if one.reader == exit_]
        if exit_.site not in {one.sender.site for one in streams}:
            return exit_, streams
    raise AssertionError("another seed is needed")


def cut_off(trace: Trace, path: Path, cuts: list[tuple[StreamReplica, slice]]) -> None:
    """Write a trace in which the ends of streams are cut off from each other for some samples."""
    delays, names = trace.delays(0).copy(), [server.name for server in trace.header.servers]
    for (sender, reader), samples in cuts:
        pair = tuple(sorted((names.index(sender.site), names.index(reader.site))))
        delays[trace.header.pairs().index(pair), samples] = UNREACHABLE
    write_trace(path, trace.header, [delays])


def test_a_stream_that_is_revived_sends_what_its_reader_lacks(path: Path, tmp_path: Path) -> None:
    """An exit reads one of two replicas, which is cut off from it for ten minutes. After 30 s it reads the
    other one: rows that it has stay as they are, the others arrive at once.
    """
    trace = Trace(path)
    description = describe(Network(trace), 1, 2, distance_ms=5.0)
    deployment = Deployment(description, make_plan(description).replicas)
    exit_, (used, collected) = a_far_exit(deployment)
    cut_off(trace, tmp_path / "cut", [(used, slice(2, 62))])
    network = Network(Trace(tmp_path / "cut"))
    network.load(0)
    streams = {one: Activity() for one in deployment.streams()}
    streams[collected].until = 0.0
    rounds, flow = np.arange(6) * INTERVAL_S, Flow(network, deployment)
    before = flow.run(rounds, streams, by_arithmetic)
    streams[collected] = Activity(since=60.0)
    after = flow.run(rounds, streams, by_arithmetic, before=before.ready, now=60.0)
    assert (before.ready[exit_][:2] < 25).all()
    assert (before.ready[exit_][2:] > 600).all()
    assert np.array_equal(after.ready[exit_][:2], before.ready[exit_][:2])
    assert (after.ready[exit_][2:] >= 60).all()
    assert (after.ready[exit_][2:] < 62).all()


def test_a_run_revives_what_is_late(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After many streams were collected, the two replicas of a filter are cut off from an exit, one after the
    other, so also the one that it still reads.
    """
    monkeypatch.setattr(engine, "COLLECT_S", engine.STEP_S)
    trace = Trace(path)
    description = describe(Network(trace), 1, 2, distance_ms=5.0)
    _, (one, other) = a_far_exit(Deployment(description, make_plan(description).replicas))
    cut_off(trace, tmp_path / "cut", [(one, slice(150, 180)), (other, slice(190, 220))])
    network = Network(Trace(tmp_path / "cut"))
    left, run = (
        simulate(network, description, Options(1, hours=0.7, collect=0.3, revive=revive))
        for revive in (False, True)
    )
    assert run.revived > 0 == left.revived
    assert (run.latencies_s[:140] == left.latencies_s[:140]).all()
    assert figures(run)["meanS"] < figures(left)["meanS"]
    assert np.isfinite(run.latencies_s).all()


def test_the_techniques_compare_as_in_the_paper() -> None:
    found = compare(1)
    before, spike, after = (10.0, 44.0), (SPIKE_S[0] + 1, SPIKE_S[1] - 1), (FAILS_S + 3, FAILS_S + 18)
    none, replicated, synchronized, ordered = found.values()
    for span in (before, spike):
        assert replicated.mean_ms(*span) < none.mean_ms(*span) < synchronized.mean_ms(*span)
        assert synchronized.mean_ms(*span) < ordered.mean_ms(*span)
    assert np.isnan(none.mean_ms(*after))
    assert replicated.mean_ms(*after) > replicated.mean_ms(*before)
    assert synchronized.mean_ms(*after) < synchronized.mean_ms(*before)
    failover = (FAILS_S - 0.5, FAILS_S + 1.0)
    assert replicated.mean_ms(*failover) < 0.2 * synchronized.mean_ms(*failover)
    assert all(np.isfinite(one.latencies_s).all() for one in (replicated, synchronized, ordered))


def test_the_tail_is_the_share_of_later_rows(network: Network) -> None:
    run = simulate(network, describe(network, 1, 1), Options(1, hours=2.0))
    for latency, share in zip(*tail(run, 20), strict=True):
        later = float((run.latencies_s >= latency).mean())
        assert later == pytest.approx(share, abs=0.02)


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_generates_simulates_and_prints(tmp_path: Path) -> None:
    trace = str(tmp_path / "trace")
    made = ["--trace", trace, "--generate", "--servers", "10", "--days", "1", "--seed", "4"]
    again = ["--trace", trace, "--seed", "4", "--hours", "0.5", "--kmax", "1,2", "--filter-minutes", "1"]
    result = CliRunner().invoke(app, [*made, *again[4:]])
    assert result.exit_code == 0, result.output
    assert "kmax" in result.stdout
    assert "3.22x" in result.stdout
    found = CliRunner().invoke(app, [*again, "--json"])
    one, two = map(json.loads, found.stdout.splitlines())
    assert (one["kmax"], two["kmax"], one["lost"], two["lost"]) == (1, 2, 0, 0)
    assert two["meanS"] <= one["meanS"]


def test_the_command_names_what_is_wrong(tmp_path: Path, path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"no trace")
    refused = CliRunner().invoke(app, ["--trace", str(tmp_path / "bad")])
    assert refused.exit_code == 2
    assert str(tmp_path / "bad") in refused.stderr
    usage = CliRunner().invoke(app, ["--trace", str(path), "--kmax", "0"])
    assert usage.exit_code == 2
    assert "numbers from 1 on" in usage.stderr
    far = ["--trace", str(path), "--kmax", "2", "--kmin", "2", "--distance-ms", "500", "--hours", "0.1"]
    negative = CliRunner().invoke(app, far)
    assert negative.exit_code == 1
    assert "fits at no site" in negative.stderr
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert "Example: ./run sites-sim" in text
