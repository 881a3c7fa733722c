"""A region of real processes that is watched: in Chromium, and in a pseudo-terminal."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

import dos
from dataflow.handle import RegionHandle
from dos_client import init_store
from dos_ui.serving import PageServer
from tests.support.needs import lacking
from tests.support.polling import until
from tests.support.servers import ServerProcess, url_of

WAIT_S = 90.0


def until_is(read: Callable[[], Any], reached: Callable[[Any], Any]) -> Any:
    """Read until it is reached; return what was read last."""
    found: list[Any] = []

    def again() -> bool:
        found[:] = [read()]
        return bool(reached(found[0]))

    until(again, "it is read", WAIT_S)
    return found[0]


@dataclass
class Watched:
    """A region that runs, and its page. While `slow` exists, an operator of it does not return."""

    region: RegionHandle
    page: PageServer
    servers: list[ServerProcess]
    store: str
    slow: Path

    @property
    def address(self) -> str:
        return self.page.url.partition("/?")[0]

    @property
    def key(self) -> str:
        return self.page.url.partition("key=")[2]


def counted_words(slow: Path) -> dos.Graph:
    def not_while_slow(row: Any) -> bool:
        while slow.exists():
            select.select([], [], [], 0.05)
        return bool(row["value"] % 3)

    graph = dos.Graph("words")
    ticks = graph.source("ticks", dos.RateSource(500)).event_time("timed", "timestamp", lateness=timedelta(0))
    some = ticks.filter("some", not_while_slow)
    words = some.flat_map("named", lambda row: [{"word": f"word{row['value'] % 50}"}], schema="word string")
    words.key_by("by_word", "word").count("counts").sink("out", dos.LogSink(publish="checkpoint"))
    return graph


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    slow = folder / "slow"
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(folder / f"server-{index}")) for index in range(3)]
        url = url_of(servers)
        trio.run(init_store, url)
        region = dos.run_local(
            counted_words(slow), store=url, workers=2, checkpoint_interval=0.5, logs=folder / "logs"
        )
        stack.callback(region.stop)
        stack.callback(lambda: slow.unlink(missing_ok=True))
        page = stack.enter_context(region.serve_page())
        until(lambda: region.status.last_checkpoint >= 2, "two checkpoints", WAIT_S)
        yield Watched(region, page, servers, url, slow)


class Browser:
    """Chromium without a window."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver = driver
        self.address = address

    def go(self, where: str) -> None:
        self.driver.get(f"{self.address}/{where}")

    def wide(self, width: int) -> None:
        """Show the page in a window that is `width` pixels wide."""
        size = {"width": width, "height": 1500, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def text(self, selector: str = "main") -> str:
        try:
            return self.driver.find_element(By.CSS_SELECTOR, selector).text
        except (NoSuchElementException, StaleElementReferenceException):  # it is being drawn again
            return ""

    def until(self, words: str, selector: str = "main") -> str:
        """Wait until the page shows the words; return the text that has them."""
        shown = ""

        def has_words() -> bool:
            nonlocal shown
            shown = self.text(selector)
            return words in shown

        until(has_words, f"{words!r} is shown", WAIT_S)
        return shown

    def named(self, tag: str, text: str) -> WebElement:
        found = [one for one in self.driver.find_elements(By.TAG_NAME, tag) if one.text == text]
        assert found, (
            f"no {tag} {text!r} among {[one.text for one in self.driver.find_elements(By.TAG_NAME, tag)]}"
        )
        return found[0]

    def fill(self, name: str, text: str) -> None:
        field = self.driver.find_element(By.NAME, name)
        field.clear()
        field.send_keys(text)


@pytest.fixture(scope="module")
def browser(watched: Watched) -> Iterator[Browser]:
    if shutil.which("chromedriver") is None:
        lacking("the page is tested in Chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    for switch in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "window-size=1300,1500",
    ):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.get(watched.page.url)
        yield Browser(driver, watched.address)
        severe = [one["message"] for one in driver.get_log("browser") if one["level"] == "SEVERE"]
        assert [one for one in severe if "401" not in one] == [], "the page has errors"  # 401: a wrong key
    finally:
        driver.quit()


class Terminal:
    """`dos top` in a terminal of 100 columns."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dos_cli", "top", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def until(self, words: str) -> None:
        """Wait until the words appear after what was waited for before."""

        def reached() -> bool:
            if select.select([self.master], [], [], 0)[0]:
                self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
            return words in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen)

        until(reached, f"{words!r} in the terminal", WAIT_S)
        self.seen = ""

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> int:
        try:
            return self.process.wait(WAIT_S)
        finally:
            self.process.kill()
            os.close(self.master)
