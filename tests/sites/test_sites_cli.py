"""`dos sites plan`: the example of the page, and every description that is refused, with its reason."""

import json
from pathlib import Path

import pytest

from sites.core.description import decode_description
from sites.errors import DescriptionError
from tests.sites.deployments import EXAMPLE
from tests.support.dos_command import dos
from tests.support.site_tables import names_in


@pytest.fixture
def application(tmp_path: Path) -> Path:
    file = tmp_path / "application.toml"
    file.write_text(EXAMPLE)
    return file


def test_the_example_of_the_page_is_planned(application: Path) -> None:
    done = dos("sites", "plan", application)
    assert (done.returncode, done.stderr) == (0, "")
    assert "joined          2   purdue, wisc" in done.stdout
    assert "exit board: a row is 21 ms on the network" in done.stdout
    assert "results continue if any one site is lost" in done.stdout
    found = json.loads(dos("sites", "plan", application, "--kmax", "3", "--json").stdout)
    assert found["replicas"] == {"joined": ["purdue", "wisc", "osu"]}
    assert (found["lossesSurvived"], found["leftOut"], found["loads"]["purdue"]) == (2, [], 0.9)
    assert found["cost"] > found["costUnreplicated"] == 21.0
    assert names_in("sites-plan") == found.keys()


def test_measured_values_replace_those_of_the_description(application: Path, tmp_path: Path) -> None:
    measured = tmp_path / "measured.toml"
    measured.write_text(
        '[[links]]\nbetween = ["osu", "purdue"]\nlatency_ms = 2.0\n'
        '[[streams]]\nfrom = "loads"\nto = "joined"\nbytes_per_s = 30000.0\n'
        "[site_loads]\npurdue = 3.0\n[region_loads]\njoined = 0.2\n"
    )
    found = json.loads(dos("sites", "plan", application, "--measured", measured, "--json").stdout)
    assert found["replicas"] == {"joined": ["osu", "wisc"]}, "purdue is busy, and osu is near it now"
    assert (found["cost"], found["latencyMs"]) == (60.0 + 360.0 + 17.0, {"board": 2.0})
    assert found["loads"]["osu"] == 0.2
    for text, words in (
        ("[site_loads]\nohio = 3.0\n", "measured.toml: site 'ohio' was measured, but is not described"),
        ('[[links]]\nbetween = ["osu", "x"]\nlatency_ms = 2.0\n', "link between 'osu' and 'x' was measured"),
        ('[[streams]]\nfrom = "board"\nto = "joined"\nbytes_per_s = 1.0\n', "stream 'board' and 'joined'"),
        ("[region_loads]\njoined = -3.0\n", "the load of region 'joined' is -3.0"),
        ("[region_load]\njoined = 3.0\n", "unknown field `region_load`"),
    ):
        measured.write_text(text)
        done = dos("sites", "plan", application, "--measured", measured)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr


def test_too_few_sites_are_refused_with_the_reason_at_each_one(application: Path) -> None:
    application.write_text(EXAMPLE.replace("distance_ms = 10", "distance_ms = 16"))
    done = dos("sites", "plan", application, "--kmax", "3")
    assert done.returncode == 0
    assert "replica 3 of region 'joined' fits at no site (purdue: it has a replica" in done.stderr
    done = dos("sites", "plan", application, "--kmax", "3", "--kmin", "3")
    assert (done.returncode, done.stdout) == (1, "")
    assert "11 ms from the replica at purdue" in done.stderr
    assert "kmin is 3" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("kmax = 2", "kmax = ", "it is no TOML"),
        ("kmax = 2", "kmax = 0", "1 <= kmin <= kmax is needed"),
        ("alpha = 0.8", "alpha = 1.5", "it is a share"),
        ("capacity = 4.0 ", "capacity = -4.0 ", "the capacity of site 'purdue' is -4.0"),
        ("capacity = 4.0 ", "capacty = 4.0 ", "unknown field `capacty`"),
        ('name = "wisc"', 'name = "purdue"', "site 'purdue' needs a name of its own"),
        ('name = "board"', 'name = "loads"', "'loads' needs a name of its own"),
        ('site = "osu"', 'site = "ohio"', "'board' is at site 'ohio', which is not described"),
        ('from = "loads"', 'from = "lods"', "the stream from 'lods' to 'joined' must lead from"),
        ('from = "loads"', 'from = "joined"', "read each other in a circle: joined from joined"),
        ('to = "board"', 'to = "joined"', "no stream leads to 'board'"),
        ('from = "joined"', 'from = "loads"', "no stream leads from region 'joined'"),
        (
            '[[streams]]\nfrom = "joined"',
            '[[streams]]\nfrom = "loads"\nto = "joined"\nbytes_per_s = 1.0\n[[streams]]\nfrom = "joined"',
            "there are two streams from 'loads' to 'joined'",
        ),
        ("load = 0.4 ", "workers = 0 ", "workers of region 'joined' is 0"),
        ("theta = 30.0", "theta = -1.0", "theta is -1.0"),
        ("theta = 30.0", "theta = nan", "theta is nan: it must be a finite number"),
        ("capacity = 4.0 ", "capacity = inf ", "the capacity of site 'purdue' is inf"),
        ("alpha = 0.8", "alpha = nan", "it is a share"),
        ("latency_ms = 21.0", "latency_ms = inf", "0 <= least_ms <= latency_ms"),
        ("kmax = 2", "kmax = 30_000_000", "a region has at most 100 replicas"),
        ("latency_ms = 21.0", "latency_ms = -1.0", "0 <= least_ms <= latency_ms"),
        ("least_ms = 11.0", "least_ms = 13.0", "0 <= least_ms <= latency_ms"),
        ('["wisc", "osu"]', '["wisc", "purdue"]', "there are two links between 'wisc' and 'purdue'"),
        ('["wisc", "osu"]', '["wisc", "ohio"]', "must be between two sites that are described"),
        (
            '[[links]]\nbetween = ["wisc", "osu"]\nlatency_ms = 17.0\n',
            "",
            "there is no link between 'osu' and 'wisc'",
        ),
    ],
)
def test_an_invalid_description_is_refused_by_name(before: str, after: str, words: str) -> None:
    assert before in EXAMPLE
    with pytest.raises(DescriptionError, match=words.replace("(", r"\(").replace("[", r"\[")):
        decode_description(EXAMPLE.replace(before, after, 1))


def test_an_error_quotes_no_more_than_can_be_read(application: Path) -> None:
    name = "x" * 1_000_000
    application.write_text(EXAMPLE.replace('site = "osu"', f'site = "{name}"', 1))
    done = dos("sites", "plan", application)
    assert done.returncode == 2
    assert "application.toml: 'board' is at site 'xxx" in done.stderr
    assert len(done.stderr) < 5_000


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = dos("sites", "plan", tmp_path / "none.toml")
    assert done.returncode == 2
    assert "none.toml: No such file or directory" in done.stderr
