"""Traces of network delays: what is written is read, damage is found, and the generator's statistics."""

from pathlib import Path

import numpy as np
import pytest

from tests.sites.simulation import network as network_module
from tests.sites.simulation.generator import (
    AREAS,
    BAD_CONGESTED,
    BAD_PAIRS,
    CONGESTED,
    OUTAGES_A_DAY,
    PARTITION_MS,
    POPULATION,
    Generator,
)
from tests.sites.simulation.network import DAY_S, Network
from tests.sites.simulation.trace import (
    SAMPLES,
    STEP_S,
    UNIT_S,
    UNREACHABLE,
    Header,
    Trace,
    TraceError,
    TraceServer,
    write_trace,
)
from tests.support.planted_source import planted

SERVERS = tuple(TraceServer(name, "somewhere") for name in ("a", "b", "c"))


def written(path: Path, days: int = 2) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    delays = [rng.integers(0, 1 << 16, (3, SAMPLES)).astype(np.uint16) for _ in range(days)]
    write_trace(path, Header(SERVERS, days, origin="a test"), delays)
    return delays


def test_what_was_written_is_read(tmp_path: Path) -> None:
    delays = written(tmp_path / "trace")
    trace = Trace(tmp_path / "trace")
    assert trace.header == Header(SERVERS, 2, origin="a test")
    assert trace.header.pairs() == [(0, 1), (0, 2), (1, 2)]
    for day, expected in enumerate(delays):
        assert np.array_equal(trace.delays(day), expected)


def test_damage_is_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    written(tmp_path / "trace", days=1)
    whole = (tmp_path / "trace").read_bytes()
    expected = Trace(tmp_path / "trace").delays(0)
    damaged, refused = tmp_path / "damaged", 0
    places = np.linspace(0, len(whole) - 1, 150).astype(int).tolist()
    places += range(len(whole) - 1500, len(whole), 12)  # the metadata
    for place in places:
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            trace = Trace(damaged)
            found = trace.delays(0)
        except TraceError as error:
            refused += str(damaged) in str(error)
        else:
            assert trace.header == Header(SERVERS, 1, origin="a test"), "what is not refused is unharmed"
            assert np.array_equal(found, expected)
    assert refused > len(places) * 0.6


def test_a_file_that_is_cut_short_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "trace", days=1)
    whole = (tmp_path / "trace").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"PAR1 and more"):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(TraceError, match="cannot be read as a Parquet file"):
            Trace(tmp_path / "bad")
    with pytest.raises(TraceError, match="absent"):
        Trace(tmp_path / "absent")


def test_a_trace_has_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    def days():
        yield np.zeros((3, SAMPLES), np.uint16)
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        write_trace(tmp_path / "trace", Header(SERVERS, 2), days())
    assert not list(tmp_path.iterdir())


# --- the generator ------------------------------------------------------------------------------------------


def test_a_seed_gives_one_trace_also_for_fewer_servers() -> None:
    one, same, other = (next(Generator(seed, 6, 1).delays()) for seed in (3, 3, 4))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    large, small = Generator(3, 12, 1), Generator(3, 6, 1)
    delays = dict(zip(named_pairs(large), next(large.delays()), strict=True))
    for pair, expected in zip(named_pairs(small), one, strict=True):
        assert np.array_equal(delays[pair], expected), "what concerns a pair depends on the pair only"


def named_pairs(generator: Generator) -> list[tuple[str, str]]:
    names = [server.name for server in generator.header.servers]
    return [(names[a], names[b]) for a, b in generator.header.pairs()]


def test_delays_are_those_of_a_world_wide_network() -> None:
    bases = Generator(1, POPULATION, 1).bases_ms()
    assert bases.mean() == pytest.approx(60, abs=8)
    assert np.median(bases) == pytest.approx(60, abs=10)
    assert bases.max() == 135
    assert bases.min() < 2


def test_outages_and_congestion_are_as_frequent_as_announced() -> None:
    generator, days = Generator(1, 30, 30), 30
    episodes = [generator._episodes(a, b) for a, b in generator.header.pairs()]
    cut = [int(np.isnan(one.delays).sum()) for one in episodes]
    assert np.mean(cut) / days == pytest.approx(2 * OUTAGES_A_DAY, rel=0.2), "of the pair and of its areas"
    lengths = np.concatenate([(one.ends - one.begins)[np.isnan(one.delays)] for one in episodes]) * STEP_S
    assert np.median(lengths) == pytest.approx(120, rel=0.3)
    assert lengths.max() <= 3600 + STEP_S
    shares = []
    for one in episodes:
        slow = ~np.isnan(one.delays) & (one.begins < days * SAMPLES)
        ends = np.minimum(one.ends[slow], days * SAMPLES)
        shares.append(float((ends - one.begins[slow]).sum()) / (days * SAMPLES))
    bad = np.array(shares) > 0.15
    assert bad.mean() == pytest.approx(BAD_PAIRS, abs=0.07)
    assert np.array(shares)[bad].mean() == pytest.approx(BAD_CONGESTED, rel=0.1)
    assert np.array(shares)[~bad].mean() == pytest.approx(CONGESTED, rel=0.15)


def test_near_servers_are_cut_off_from_the_same_others_at_the_same_time() -> None:
    """This is why replicas have a minimum distance."""
    generator = Generator(1, 30, 30)
    near = generator._between <= PARTITION_MS
    assert generator._partitions
    for cut in generator._partitions:
        assert not (cut.inside & cut.outside).any()
        center = next(at for at in range(len(AREAS)) if np.array_equal(near[at], cut.inside))
        for area in np.flatnonzero(near[center]):
            separated = [cut.separates(int(area), other) for other in range(len(AREAS))]
            assert separated == [cut.separates(center, other) for other in range(len(AREAS))]


# --- links --------------------------------------------------------------------------------------------------


def a_network(path: Path, delays: np.ndarray) -> Network:
    """Two servers. delays: the samples of the first day in seconds, NaN where they are cut off."""
    samples = np.full((1, SAMPLES), 0.1)
    samples[0, : len(delays)] = delays
    units = np.where(np.isnan(samples), UNREACHABLE, np.nan_to_num(np.round(samples / UNIT_S)))
    write_trace(path, Header(SERVERS[:2], 1), [units.astype(np.uint16)])
    network = Network(Trace(path))
    network.load(0)
    return network


def arrivals(network: Network, times: list[float]) -> list[float]:
    sent = np.array(times)
    return [round(one, 3) for one in network.arrive(network.links(["a"], "b"), sent).tolist()]


def test_what_is_sent_arrives_after_the_delay_of_its_time(tmp_path: Path) -> None:
    network = a_network(tmp_path / "trace", np.array([0.5, 1.0, 0.25]))
    assert arrivals(network, [0.0, 9.0, 10.0]) == [0.5, 9.5, 11.0]
    assert arrivals(network, [19.9, 20.0, 21.0]) == [20.9, 21.0, 21.25], "nothing is overtaken"
    assert network.arrive(network.links(["a"], "a"), np.array([7.0])).tolist() == [7.0]
    assert arrivals(network, [float("inf")]) == [float("inf")]


def test_what_is_sent_while_a_pair_is_cut_off_arrives_afterwards(tmp_path: Path) -> None:
    network = a_network(tmp_path / "trace", np.array([0.5, np.nan, np.nan, 0.2]))
    assert arrivals(network, [9.9, 10.0, 29.0, 30.0, 31.0]) == [10.4, 30.2, 30.2, 30.2, 31.2]


BUGS = {
    "rows overtake each other": ("np.maximum.accumulate(ends, axis=1)", "np.full_like(ends, -np.inf)"),
    "an outage ends at once": ("wait = np.where(cut, reopened, wait)", "pass"),
}


@pytest.mark.parametrize("bug", [None, *BUGS])
def test_order_is_kept_on_every_link(bug: str | None, tmp_path: Path) -> None:
    generator = Generator(5, 4, 1)
    write_trace(tmp_path / "trace", generator.header, generator.delays())
    kind = planted(network_module, *BUGS[bug])["Network"] if bug else Network
    network = kind(Trace(tmp_path / "trace"))
    network.load(0)
    sent = np.arange(0, DAY_S - 3 * 3600, 1.7)  # after its end, a trace does not say when an outage ends
    fine = True
    for link, delays in enumerate(network.trace.delays(0), start=1):
        arrived = network.arrive(np.array([link]), sent)
        fine &= bool((np.diff(arrived) >= 0).all())
        cut = delays[(arrived / STEP_S).clip(0, SAMPLES - 1).astype(int)] == UNREACHABLE
        sent_in_vain = cut & (delays[(sent / STEP_S).astype(int)] == UNREACHABLE)
        fine &= not sent_in_vain.any()
    assert fine == (bug is None)
