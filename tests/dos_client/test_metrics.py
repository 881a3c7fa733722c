"""The figures for Prometheus: what the page says is there, is there; stores that open and close add up."""

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from dos_client import MemberStatus, metrics
from dos_client.core.status import StoreCounters
from dos_client.core.watching import MemberSight, Problem, ReportAction, SpareSight, StoreSight, WaitAction
from dos_client.membership.watching import _publish_look
from dos_protocol.store_record import Member, StoreRecord
from tests.support.examples import run_example


def test_the_example_of_the_page_serves_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_example("docs/metrics.md", "serve", port="0")
    names["prometheus_client"].REGISTRY.unregister(metrics.registry)
    assert "dos_client_appended_bytes_total" in capsys.readouterr().out


def member(address: str, state: str = "in sync", lag_bytes: int = 0, lag_s: float = 0.0) -> MemberStatus:
    return MemberStatus(address, b"", state, lag_bytes, state != "unavailable", "", lag_s)


def value(name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_several_stores_that_see_one_member_add_up_and_show_the_worst() -> None:
    one, other = metrics.StoreFigures(), metrics.StoreFigures()
    try:
        one.publish(StoreCounters(), [member("m:1", "catching up", 5, 2.0), member("m:2")], 1)
        other.publish(StoreCounters(), [member("m:1", "unavailable", 7, 1.0)], 0)
        assert value("dos_client_member_lag_bytes", member="m:1") == 12
        assert value("dos_client_member_lag_seconds", member="m:1") == 2
        assert value("dos_client_member_state", member="m:1", dos_client_member_state="unavailable") == 1
        assert value("dos_client_member_state", member="m:1", dos_client_member_state="catching up") == 0
        assert value("dos_client_waiting_claims") == 1
        other.close()
        assert value("dos_client_member_lag_bytes", member="m:1") == 5
    finally:
        one.close()
        other.close()
    assert value("dos_client_member_lag_bytes", member="m:1") is None, "nobody sees it any more"
    assert value("dos_client_waiting_claims") == 0


def test_a_member_that_was_replaced_is_in_no_gauge_once_no_store_has_it() -> None:
    one, other = metrics.StoreFigures(), metrics.StoreFigures()
    lagging, gauges = member("m:1", "unavailable", 5, 70.0), ("lag_bytes", "lag_seconds")

    def shown() -> list[float | None]:
        return [value(f"dos_client_member_{gauge}", member="m:1") for gauge in gauges]

    try:
        one.publish(StoreCounters(), [lagging, member("m:2")], 0)
        other.publish(StoreCounters(), [lagging], 0)
        one.publish(StoreCounters(), [member("m:2"), member("m:3")], 0)
        assert shown() == [5, 70.0], "the other store has it"
        other.publish(StoreCounters(), [member("m:3")], 0)
        assert shown() == [None, None]
        assert value("dos_client_member_state", member="m:1", dos_client_member_state="unavailable") is None
        assert value("dos_client_member_lag_bytes", member="m:3") == 0
        one.publish(StoreCounters(), [lagging], 0)
        assert shown() == [5, 70.0], "it is back"
    finally:
        one.close()
        other.close()
    assert shown() == [None, None]


def test_counters_grow_by_what_is_new_and_stay_when_the_store_is_closed() -> None:
    figures, counts = metrics.StoreFigures(), StoreCounters(appended_bytes=10)
    counts.sent_bytes["m:9"] = 30
    counts.filled_bytes["m:9", "local"] = 20
    before = value("dos_client_appended_bytes_total") or 0
    figures.publish(counts, [], 0)
    figures.publish(counts, [], 0)
    counts.appended_bytes += 1
    counts.filled_bytes["m:9", "local"] += 2
    figures.publish(counts, [], 0)
    figures.close()
    assert (value("dos_client_appended_bytes_total") or 0) - before == 11
    assert value("dos_client_catch_up_bytes_total", member="m:9", source="local") == 22
    assert value("dos_client_sent_bytes_total", member="m:9") == 30


@pytest.mark.parametrize("own", [True, False])
def test_an_applications_own_registry_can_show_them_beside_its_own(own: bool) -> None:
    registry = CollectorRegistry()
    if own:
        Counter("application_things", "What the application counts", registry=registry).inc()
    registry.register(metrics.registry)  # type: ignore[arg-type]
    text = generate_latest(registry).decode()
    assert "dos_client_appended_bytes_total" in text
    assert ("application_things_total 1.0" in text) == own


def test_a_watcher_shows_members_by_state_and_why_a_person_has_to_act() -> None:
    here, moved, lost = (Member(bytes([number]) * 16, f"m:{number}") for number in (1, 2, 3))
    spares = (Member(b"s" * 16, "s:1", "spare"), Member(b"t" * 16, "s:2", "spare"))
    record = StoreRecord(b"x" * 16, 7, 2, (here, moved, lost), spares)
    members = (
        MemberSight(here, True),
        MemberSight(moved, False, 2.0, ("n:2",)),
        MemberSight(lost, False, 9.0),
    )
    sight = StoreSight(record, members, (SpareSight(spares[0]), SpareSight(spares[1], "it is not empty")))
    _publish_look(sight, ReportAction("why", "remedy", Problem.NO_SPARE), 1_000.0)
    assert {one: value("dos_watch_members", state=one) for one in ("present", "moved", "unavailable")} == {
        "present": 1,
        "moved": 1,
        "unavailable": 1,
    }
    assert value("dos_watch_member_silent_seconds", member="m:3") == 9
    assert value("dos_watch_spares", state="usable") == value("dos_watch_spares", state="unusable") == 1
    assert value("dos_watch_problem", dos_watch_problem="no usable spare") == 1
    assert value("dos_watch_generation") == 7
    whole = StoreRecord(b"x" * 16, 8, 1, (here,))
    _publish_look(StoreSight(whole, members[:1]), WaitAction(), 1_001.0)
    assert value("dos_watch_members", state="unavailable") == 0
    assert value("dos_watch_member_silent_seconds", member="m:3") is None, "it is no member any more"
    assert value("dos_watch_problem", dos_watch_problem="none") == 1
    assert value("dos_watch_last_look_timestamp_seconds") == 1_001
