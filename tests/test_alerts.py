"""The alert rules and the dashboards of deploy/: they name metrics that exist, and promtool accepts them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import yaml

from tests.support.needs import lacking
from tests.support.site_tables import names_of_metrics
from tests.test_repository import ROOT

RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
BOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))


def rules() -> dict[str, str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {one["alert"]: one["expr"] for group in groups for one in group["rules"]}


def board() -> list[str]:
    panels = [panel for board in BOARDS for panel in json.loads(board.read_text())["panels"]]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_each_dashboard_has_its_own_id_and_panels_that_do_not_overlap() -> None:
    boards = [json.loads(board.read_text()) for board in BOARDS]
    assert len({board["uid"] for board in boards}) == len(boards) == 2
    for board in boards:
        places = [
            (x, y)
            for at in (panel["gridPos"] for panel in board["panels"])
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        assert len(places) == len(set(places))
        assert max(x for x, _ in places) < 24


def test_every_metric_is_documented_and_every_alert_has_a_remedy() -> None:
    known = {*names_of_metrics(), "dos_tls_expiry_timestamp_seconds", "dos_region", "dos_role"}
    for expression in (*rules().values(), *board()):
        for name in re.findall(r"\bdos_\w+", expression):
            assert name.removesuffix("_bucket") in known, name
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for one in group["rules"]:
            assert set(one["annotations"]) == {"summary", "remedy"}
            assert one["labels"]["severity"] in ("page", "ticket")


def test_promtool_accepts_and_runs_the_rules_and_parses_the_dashboard(tmp_path: Path) -> None:
    if (program := shutil.which("promtool")) is None:
        lacking("no promtool: apt-get install prometheus")

    def promtool(*arguments: str) -> None:
        done = subprocess.run([program, *arguments], cwd=RULES.parent, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    promtool("check", "rules", RULES.name)
    promtool("test", "rules", "rules-test.yaml")
    queries = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(board())]
    file = tmp_path / "board.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": queries}]}))
    promtool("check", "rules", str(file))
