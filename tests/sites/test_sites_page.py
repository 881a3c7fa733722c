"""The example of docs/sites.md, followed from nothing: its files and commands as they stand there."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sites.deployments import PAGE
from tests.support.needs import as_root

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
WAIT_S = 240.0
FILES = ("board_graphs.py", "application.toml", "send.py")


def block(name: str) -> str:
    found = re.search(rf"<!-- example: {name} -->\n```\w+\n(.*?)```\n", PAGE, re.DOTALL)
    assert found is not None, name
    return found[1]


def test_the_example_of_the_page_can_be_followed_from_nothing(tmp_path: Path) -> None:
    for name in ("sites_graphs", "sites_description", "sites_producer"):
        text = block(name)
        (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(FILES)
    (tmp_path / "commands.sh").write_text("set -e\n" + block("sites_commands"))
    prefix = as_root()
    # In a network of its own, the ports of the page are free.
    network = (
        () if prefix is None else (*prefix, "unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-c")
    )
    script = "ip link set lo up; exec bash commands.sh" if network else "commands.sh"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with (tmp_path / "errors.log").open("w") as errors:
        process = subprocess.Popen(
            [*network, script] if network else ["bash", script],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("exit board"):
                    break
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)
            assert process.stdout is not None
            process.stdout.close()
    shown = "".join(lines)
    rows = re.findall(r"^20\S+ ?\S*\t(s\d)\t(0\.\d)$", shown, re.MULTILINE)
    assert rows == [(f"s{number}", f"0.{number}") for number in range(6, 10)], shown
    assert re.search(r"^\s*high@osu\s+running", shown, re.MULTILINE), shown
    assert re.search(r"^\s*high@purdue\s+running", shown, re.MULTILINE), shown
