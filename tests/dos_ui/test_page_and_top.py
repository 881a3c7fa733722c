"""The web page in a real browser and `dos top` in a real terminal, on a region of real processes that is
stopped and killed.
"""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import dos
from dos_ui import readings
from dos_ui.serving import PageServer
from tests.dos_gateway.gateways import GatewayProcess
from tests.dos_ui.watched_region import WAIT_S, Browser, Terminal, Watched, browser, until_is, watched
from tests.support.dos_command import dos as command
from tests.support.examples import run_example
from tests.support.polling import until
from tests.support.servers import hold_port
from tests.support.terminals import shown_on_terminal

__all__ = ["browser", "watched"]  # fixtures
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


BOXES = """return [...document.querySelectorAll("svg.graph rect")].map((one) => {
  const { x, y, width } = one.getBoundingClientRect();
  return { x: Math.round(x), y: Math.round(y), width: Math.round(width) };
})"""
"""The operators of the graph, where they are drawn."""
MIDDLE = """const { x } = Chart.getChart(document.querySelector(".plot canvas")).scales;
return [x.max - x.min, ...[x.min, (x.min + x.max) / 2, x.max].map((time) => x.getPixelForValue(time))]"""
"""The milliseconds that the axis of the rates has, and where its begin, middle and end are drawn."""
DRIVER = """
import sys, dos
graph = dos.Graph("words2")
graph.source("ticks", dos.RateSource(50)).sink("out", dos.LogSink())
region = dos.run_local(graph, store=sys.argv[1], workers=1, standby=0, checkpoint_interval=0.5)
while not region.status.last_checkpoint:
    region.wait(0.1)
print(region.status.workers[0].pid, flush=True)
sys.stdin.read()
"""
"""A driver of a region, which ends when it is killed."""


def broken(row: Any) -> Any:
    raise ValueError(f"this row cannot be processed: \x1b[2J {row}")


def ask(watched: Watched, path: str, *, body: Any = None, **headers: str) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{watched.address}/{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_nothing_is_shown_or_changed_without_the_key(watched: Watched) -> None:
    for path in ("api/store", "api/regions/words", "api/records?directory=words.coord&name=manifest"):
        code, answer = ask(watched, path)
        assert (code, "this page needs its key" in answer["error"]) == (401, True)
    cookie = {"Cookie": f"dos_page={watched.key}"}
    assert ask(watched, "api/store", **cookie)[0] == 200
    assert ask(watched, "api/store", Cookie="dos_page=wrong")[0] == 401
    assert ask(watched, "api/regions/words/checkpoint", body={}, **cookie)[0] == 401, (
        "not with the cookie alone"
    )
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(f"{watched.address}/?key=wrong", timeout=60)
    with refused.value as answer:
        assert b"This page needs its key" in answer.read()
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")


def test_what_cannot_be_done_is_refused_with_the_reason(watched: Watched) -> None:
    key = {"Authorization": f"Bearer {watched.key}"}
    code, answer = ask(watched, "api/regions/words/explode", body={}, **key)
    assert (code, answer["error"].split(" (")[0]) == (400, "unknown change 'explode'")
    assert ask(watched, "api/regions/words/scale", body={"workers": "3"}, **key)[0] == 400
    code, answer = ask(watched, "api/regions/words/restore", body={"name": "savepoint:none"}, **key)
    assert (code, "none" in answer["error"]) == (503, True)
    code, answer = ask(watched, "api/regions/absent", Cookie=f"dos_page={watched.key}")
    assert (code, "absent" in answer["error"]) == (503, True)
    code, answer = ask(
        watched, "api/records?directory=words.coord&name=manifest&pattern=(", Cookie=f"dos_page={watched.key}"
    )
    assert (code, "is not a regular expression" in answer["error"]) == (400, True)


def test_a_notebook_shows_a_region_with_its_workers_rates_and_graph(
    watched: Watched, browser: Browser, tmp_path: Path
) -> None:
    region = watched.region
    until(lambda: "rows/s in" in region._repr_html_(), "there are rates", WAIT_S)
    assert re.fullmatch(
        r"<RegionHandle words: RUNNING, 2 workers, checkpoint \d+(; the next .*)?>", repr(region)
    )
    shown = tmp_path / "cell.html"
    shown.write_text(region._repr_html_(), encoding="utf-8")
    browser.driver.get(shown.as_uri())
    text = browser.text("body")
    assert re.search(r"words\s+RUNNING 2 workers, checkpoint \d+", text), text
    assert len(browser.driver.find_elements(By.TAG_NAME, "tr")) == 3
    assert re.search(r"at checkpoint \d+: [\d,]+ rows/s in, [\d,]+ rows/s out", text), text
    boxes = {one.text.split("\n")[0]: one.text for one in browser.driver.find_elements(By.TAG_NAME, "g")}
    assert boxes.keys() == {"ticks", "timed", "some", "named", "by_word", "counts", "out"}
    assert re.search(r"counts\s+count\s+[\d,]+ in, [\d,]+ out", boxes["counts"]), boxes


def test_the_page_shows_the_store_and_what_is_stored(watched: Watched, browser: Browser) -> None:
    browser.go("#/store")
    shown = browser.until("available")
    assert all(server.location in shown for server in watched.servers)
    browser.until("words")
    browser.go("#/browse")
    assert "words.w0001\nworker" in browser.until("words.w0001").replace(" ", "\n")
    browser.driver.find_element(By.LINK_TEXT, "words.coord").click()
    browser.until("Journals: manifest")
    browser.driver.find_element(By.LINK_TEXT, "manifest").click()
    browser.until("SEGMENT_START")
    browser.fill("text", '"number":2,')
    browser.named("button", "Search").click()
    until(lambda: "SEGMENT_START" not in browser.text(), "the search has its answer", WAIT_S)
    browser.until("2,")
    browser.named("button", "show whole").click()
    browser.until('"operators":{')
    browser.go("#/browse/state-of/words/counts")
    browser.until("word17")
    browser.fill("text", "word42")
    browser.named("button", "Search").click()
    until(lambda: "word17" not in browser.text(), "only rows with the text", WAIT_S)
    assert "word42" in browser.text()


@pytest.mark.long
def test_the_page_shows_the_trees_and_who_serves_them(
    watched: Watched, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "TREES_S", 1.0)
    trees = "table[aria-label=Trees]"
    with GatewayProcess(f"{watched.store}/orders", "--max-bytes", "1GiB") as gateway:
        gateway.client.put("/totals/offsets/0", bytes(2_000_000))
        browser.go("#/store")
        shown = browser.until("2.00 MB", trees)
        assert re.search(rf"orders\s+served\s+127.0.0.1:{gateway.port} on \S+, epoch 1", shown), shown
        assert re.search(r"\d+ s ago\s+1\s+2.00 MB\s+2.00 MB\s+652 MB$", shown), shown
    shown = browser.until("not served", trees)
    assert "nobody serves it; the last one was the gateway at 127.0.0.1" in shown
    browser.driver.find_element(By.LINK_TEXT, "orders").click()
    browser.until("Journals: fs")


def test_the_page_shows_a_region_live_while_it_is_slow_and_after_a_kill(
    watched: Watched, browser: Browser
) -> None:
    browser.go("#/region/words")
    shown = browser.until("RUNNING")
    assert "Dataflow" in shown
    until(lambda: "timed 20" in browser.text("table[aria-label='Event time']"), "its watermark", WAIT_S)
    for operator in ("ticks", "some", "by_word", "counts", "out"):
        assert operator in browser.text("svg.graph")
    until(lambda: "/s in" in browser.text("svg.graph"), "rates are shown", WAIT_S)
    watched.slow.touch()
    try:
        waits = browser.until("it runs operator 'some'", "#under-way")
        assert re.search(r"Checkpoint \d+ was requested .* ago and waits for the votes of", waits)
        browser.until("RUNNING, checkpoint stuck", "h1 .badge.warn")
        browser.until("held up in worker", "svg.graph .slow")
        assert browser.text("svg.graph .slow").startswith("some")
        until(
            lambda: re.search(r"in some for .* 100 %", browser.text("table[aria-label=Workers]")),
            "busy",
            WAIT_S,
        )
        shown = command("top", watched.store, "words", "--once").stdout
        assert "words: RUNNING, checkpoint stuck" in shown
        assert re.search(r"RUNNING, in some for \d+ s .* 100%", shown), shown
        assert re.search(r"words +RUNNING, checkpoint stuck", command("top", watched.store, "--once").stdout)
        waits_for = (
            r"waits for region words: RUNNING, checkpoint \d+ has waited [\d.]+ s for the vote of worker"
        )
        shown, _ = shown_on_terminal(["region", "checkpoint", watched.store, "words"], waits_for)
        assert re.search(waits_for, shown), shown
    finally:
        watched.slow.unlink()
    until(lambda: "waits for" not in browser.text("#under-way"), "the checkpoint is committed", WAIT_S)
    browser.until("RUNNING", "h1 .badge.good")
    os.kill(watched.region.status.workers[1].pid, signal.SIGKILL)
    # The broken link may be noticed before the launcher reports how the process ended.
    cause = re.compile("ended with signal 9|control link is gone")
    until(lambda: cause.search(browser.text("table[aria-label=Resets]")), "the reset is shown", WAIT_S)
    browser.until("RUNNING", "h1 .badge.good")


def test_the_graph_can_be_read_on_a_narrow_screen_and_time_is_drawn_to_scale(
    watched: Watched, browser: Browser
) -> None:
    browser.go("#/region/words")
    browser.until("/s in", "svg.graph")
    in_a_row = browser.driver.execute_script(BOXES)
    assert len({box["y"] for box in in_a_row}) == 1, "there is room from left to right"
    try:
        browser.wide(420)
        boxes = until_is(lambda: browser.driver.execute_script(BOXES), lambda found: found != in_a_row)
        assert min(box["x"] for box in boxes) >= 0
        assert max(box["x"] + box["width"] for box in boxes) <= 420
        assert min(box["width"] for box in boxes) >= max(box["width"] for box in in_a_row), "no smaller"
        assert min(box["width"] for box in in_a_row) >= 0.8 * 158, "nothing is smaller than can be read"
        assert browser.driver.execute_script("return document.documentElement.scrollWidth") <= 420
    finally:
        browser.wide(1300)
    axis = until_is(lambda: browser.driver.execute_script(MIDDLE), lambda found: found[0] > 3_000)
    assert axis[2] == pytest.approx((axis[1] + axis[3]) / 2), "half of the time is half of the way"


def test_a_savepoint_and_a_restore_by_keyboard(watched: Watched, browser: Browser) -> None:
    browser.go("#/store")
    browser.until("words")
    browser.driver.find_element(By.LINK_TEXT, "words").send_keys(Keys.ENTER)
    browser.until("Change it")
    browser.fill("key", "wrong")
    browser.fill("name", "good")
    browser.driver.find_element(By.NAME, "name").send_keys(Keys.ENTER)
    browser.until("this page needs its key")
    browser.fill("key", watched.key)
    browser.driver.find_element(By.NAME, "name").send_keys(Keys.ENTER)
    browser.until("savepoint: done, at checkpoint")
    browser.until("good: checkpoint")
    target = browser.driver.find_element(By.CSS_SELECTOR, "select[required]")
    until(lambda: "savepoint good" in target.text, "it can be restored", WAIT_S)
    target.send_keys("savepoint good")
    browser.named("button", "Restore").send_keys(Keys.ENTER)
    dialog = browser.until("All workers of words go back to savepoint good", "dialog")
    assert "Cancel" in dialog
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    browser.until("restore: done, at checkpoint")
    restored = "it was restored to checkpoint"
    until(  # it is reported when all workers run again
        lambda: any(one.reason.startswith(restored) for one in watched.region.status.resets),
        "the reset is reported",
        WAIT_S,
    )


def test_the_first_screen_tells_regions_that_run_from_those_that_ended_and_died(
    watched: Watched, browser: Browser
) -> None:
    failed = dos.Graph("words3")
    failed.source("ticks", dos.RateSource(50)).map("broken", broken).sink("out", dos.LogSink())
    with pytest.raises(dos.RegionFailedError):
        dos.run_local(failed, store=watched.store, workers=1, standby=0).awaitTermination()
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, watched.store],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    worker = int(driver.stdout.readline())
    try:
        driver.kill()
        driver.communicate()
        found = json.loads(command("top", watched.store, "--once", "--json").stdout)
        shown = {one["region"]: one["shown"] for one in found["regions"]}
        assert (shown["words"]["name"], shown["words"]["kind"]) == ("RUNNING", "good")
        assert (shown["words3"]["name"], shown["words3"]["kind"]) == ("FAILED", "bad")
        assert "operator 'broken' failed" in shown["words3"]["text"]
        assert (shown["words2"]["name"], shown["words2"]["since"]) == ("no driver", "last sign")
        table = command("top", watched.store, "--once").stdout
        assert re.search(r"words2 +no driver, last sign \d+.* ago", table)
        assert re.search(r"words3 +FAILED, ended .* ago", table)
        browser.go("#/store")
        rows = "table[aria-label=Regions]"
        until(
            lambda: re.search(r"words2 no driver last sign .* ago", browser.text(rows)), "it has died", WAIT_S
        )
        assert re.search(r"words3 FAILED ended .* ago\s+operator 'broken' failed", browser.text(rows))
        assert "words RUNNING" in browser.text(rows)
        browser.driver.find_element(By.LINK_TEXT, "words3").click()
        browser.until("FAILED", "h1 .badge.bad")
        assert "this row cannot be processed" in browser.text("table[aria-label=Workers]"), "its last error"
        assert "this row cannot be processed" in command("top", watched.store, "words3", "--once").stdout
        status = command("region", "status", watched.store, "words3")
        assert (status.returncode, "ended region words3 as FAILED" in status.stderr) == (1, True)
        assert "this row cannot be processed" in status.stdout
        assert "\x1b" not in status.stdout + status.stderr
    finally:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)  # it would end when it has noticed


def test_every_chart_and_field_has_a_name_for_a_screen_reader(watched: Watched, browser: Browser) -> None:
    browser.go("#/region/words")
    browser.until("Change it")
    unnamed = browser.driver.execute_script(
        "return [...document.querySelectorAll("
        "'canvas, svg.graph, table, input, select, button, a, nav, dialog')]"
        ".filter((one) => !(one.getAttribute('aria-label') || one.labels?.length || one.innerText?.trim()))"
        ".map((one) => one.outerHTML)"
    )
    assert unnamed == []
    browser.go("#/store")
    browser.driver.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.driver.switch_to.active_element.text == "Skip to the content"


def test_the_page_continues_while_the_store_has_no_quorum(watched: Watched, browser: Browser) -> None:
    browser.go("#/region/words")
    browser.until("RUNNING")
    away = PageServer([one.location for one in watched.servers], "127.0.0.1", 0, b"", {})
    key = {"Cookie": f"dos_page={away.url.partition('key=')[2]}"}
    at = Watched(watched.region, away, [], watched.store, watched.slow)
    try:
        assert ask(at, "api/regions/words", **key)[1]["stale"] is None
        assert ask(at, "api/lists", **key)[1]["stale"] is None
        for server in watched.servers[:2]:
            server.kill()
        shown = browser.until("WAITING_FOR_STORE")
        assert all(server.location in shown for server in watched.servers[:2]), "the reason names them"
        stale = until_is(lambda: ask(at, "api/regions/words", **key), lambda found: found[1]["stale"])[1]
        assert stale["shown"]["name"].startswith("RUNNING")
        assert stale["shown"]["kind"] == "warn"
        assert stale["shown"]["since"] == "as of"
        assert "start the missing members" in stale["stale"]["problem"], "the remedy"
        assert stale["graph"]
        lists = until_is(lambda: ask(at, "api/lists", **key), lambda found: found[1]["stale"])[1]
        assert "words" in [one["region"] for one in lists["regions"]]
    finally:
        away.close()
        for server in watched.servers[:2]:
            server.restart()
    browser.until("RUNNING", "h1")


def test_top_shows_the_store_and_a_region_and_takes_keys(watched: Watched) -> None:
    top = Terminal(watched.store, "--interval", "0.5")
    top.until("enter open")
    top.press("\r")
    top.until("by_word")
    top.until("/s")
    top.press("\x1b")
    top.until("up/down choose")
    top.press("q")
    assert top.end() == 0


def test_top_once_prints_a_reading(watched: Watched) -> None:
    found = json.loads(command("top", watched.store, "words", "--once", "--json").stdout)
    assert (found["name"], found["answered"]) == ("words", True)
    assert [one["name"] for one in found["graph"]] == [
        "ticks", "timed", "some", "named", "by_word", "counts", "out",
    ]  # fmt: skip
    assert found["rates"]["operators"]["ticks"]["rowsOut"] is not None
    assert found["timeline"][-1]["checkpoint"] == found["manifest"]["lastCheckpoint"]["checkpoint"]
    store = json.loads(command("top", watched.store, "--once", "--json").stdout)
    assert store["regions"][0]["region"] == "words"
    shown = command("top", watched.store, "words", "--once").stdout
    assert "words: RUNNING" in shown
    assert re.search(r"event time of 'timed' is at 20\d\d-\d\d-\d\dT", shown)
    refused = command("top", watched.store)
    assert (refused.returncode, "this is no terminal: pass --once" in refused.stderr) == (2, True)


def test_top_shows_a_store_without_a_quorum() -> None:
    with hold_port(0) as held:
        url = f"dos://127.0.0.1:{held.getsockname()[1]}"
        shown = command("top", url, "--once")
        assert shown.returncode == 3
        assert "no store record could be confirmed" in shown.stdout
        refused = command("ui", url, "--listen", "127.0.0.1:65536")
        assert (refused.returncode, "a port from 0 to 65535" in refused.stderr) == (2, True)
        held.listen()
        taken = f"127.0.0.1:{held.getsockname()[1]}"
        refused = command("ui", url, "--listen", taken)
        assert refused.stderr.startswith(f"dos: {taken}: Address already in use")


def test_store_ls_lists_every_directory(watched: Watched) -> None:
    rows = {
        one["directory"]: one for one in json.loads(command("store", "ls", watched.store, "--json").stdout)
    }
    assert {"words.coord", "words.w0000", "words.w0001"} <= rows.keys()
    assert rows["words.coord"]["epoch"] == watched.region.status.incarnation
    assert rows["words.w0000"]["bytes"] > 0
    assert "words.coord" in command("store", "ls", watched.store).stdout


def test_ui_serves_the_page_of_any_store(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a-long-random-word\n")
    arguments = (
        "ui",
        watched.store,
        "--listen",
        "127.0.0.1:0",
        "--read-only",
        "--key-file",
        str(tmp_path / "key"),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "dos_cli", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        page = Watched(watched.region, watched.page, [], watched.store, tmp_path)
        page.page = type("At", (), {"url": f"{line.split()[3]}/?key=a-long-random-word"})()
        key = {"Authorization": "Bearer a-long-random-word"}
        code, region = ask(page, "api/regions/words", **key)
        assert (code, region["status"]["state"]) == (200, "RUNNING")
        code, answer = ask(page, "api/regions/words/checkpoint", body={}, **key)
        assert (code, "this page changes nothing" in answer["error"]) == (403, True)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
        assert process.stdout is not None
        process.stdout.close()
    open_to_all = command("ui", watched.store, "--listen", "0.0.0.0:0")
    assert (open_to_all.returncode, "pass --tls, or listen on 127.0.0.1" in open_to_all.stderr) == (2, True)
    serve_page = run_example("docs/watching.md", "page")["serve_page"]
    address, _, own_key = serve_page(watched.region, "127.0.0.1:0").partition("/?key=")
    asked = urllib.request.Request(f"{address}/api/about", headers={"Authorization": f"Bearer {own_key}"})
    with urllib.request.urlopen(asked, timeout=60) as about:
        found = json.loads(about.read())
        assert (found["url"], found["readOnly"]) == (watched.store, False)
    with pytest.raises(ValueError, match="can be reached from other machines"):
        watched.region.serve_page("0.0.0.0:0")
