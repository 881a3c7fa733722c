"""Stories are replayed and compared; a story that cannot be replayed names the place and the reason."""

import re
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

from checkpoint import limits as checkpoint_limits
from checkpoint.core.coordination.checkpoints import PendingCheckpoint
from checkpoint.core.coordination.rounds import TakeOvers
from dataflow.core.peer_links import PeerLinks
from dataflow.errors import StepsMissingError
from dos_protocol.errors import RemoteProtocolError
from tests.sim.__main__ import app
from tests.sim.bugs import BUGS, planted
from tests.stories.__main__ import forms
from tests.stories.replay import FOLDER, PLAYS, check, retell, stories
from tests.stories.script import WIDTH, StoryError

LINES_MAX = 60
SHOWN_BY = {
    "lower_epochs_may_claim": "duel",
    "same_epoch_twice": "duel",
    "one_claim_is_enough": "duel",
    "fenced_sessions_may_append": "zombie",
    "older_sessions_receive_watermarks": "late-watermark",
    "wiped_server_counts": "wiped",
    "damaged_copies_have_answered": "damaged",
    "damage_is_taken_for_a_torn_tail": "damaged",
    "longest_copy_is_the_head": "longest",
    "nothing_is_settled": "take-over",
    "own_start_is_not_waited_for": "figure-8",
    "readers_receive_everything": "readers",
    "created_without_all_members": "creation",
    "full_disk_leaves_a_part": "full-disk",
    "small_files_are_overwritten_in_place": "torn-tail",
    "votes_of_any_incarnation": "votes",
    "a_vote_may_be_missing": "reset",
    "one_member_acknowledges": "take-over",
    "claim_is_not_stored": "torn-tail",
    "refused_appends_are_written": "zombie",
    "sizes_are_read_before_the_claim": "late-watermark",
    "offsets_decide_and_not_pointers": "longest",
    "records_do_not_wait_for_the_one_before": "figure-8",
    "payload_digests_are_not_compared": "damaged",
    "new_copies_are_not_synced": "repaired",
    "a_new_copy_is_the_shortest": "repaired",
    "new_member_counts_before_it_is_filled": "replacement",
    "servers_continue_with_older_generations": "replacement",
    "barrier_overtakes_data": "markers",
    "frames_of_any_incarnation": "stale-marker",
    "old_markers_count": "checkpoint-marker",
}
"""Planted bug of `tests/sim/bugs` -> the story that goes otherwise with it."""
README = FOLDER / "README.md"

TOLD = """# A story of one server (R1).

servers 1, quorum 1
writer A takes over d
    A claims epoch 1
    s1 grants A epoch 1; it holds nothing
    A finds no journal on s1: it begins one
    A opens 1:0; its start is acknowledged by s1
"""


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(TOLD)
    return path


@pytest.mark.parametrize("path", stories(), ids=lambda path: path.stem)
def test_a_story_is_reported_as_it_happens(path: Path, pytestconfig: pytest.Config) -> None:
    diff = check(path, rewrite=pytestconfig.getoption("--rewrite"))
    assert not diff, f"{diff}\n\nIf that is right: ./run test tests/stories --rewrite"


@pytest.mark.parametrize("bug", sorted(SHOWN_BY))
def test_with_its_rule_broken_a_story_goes_otherwise(bug: str) -> None:
    with planted(bug):
        try:
            different = check(FOLDER / f"{SHOWN_BY[bug]}.txt")
        # what looks on has rules of its own; and a step may not be there to be taken any more
        except (AssertionError, RemoteProtocolError, StoryError) as error:
            different = repr(error)
    assert different, f"it does not show {BUGS[bug].breaks}"


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "story"),
    [
        (
            PendingCheckpoint,
            "taken_over",
            lambda self, worker, term: self.terms.update({worker: term}),
            "taken-over",
        ),
        (PeerLinks, "purge", lambda self, step: self.retained.purge(step + 1), "taken-over"),
        (checkpoint_limits, "suspected_silent_s", 60.0, "ring"),
        (checkpoint_limits, "suspected_silent_s", 60.0, "ring-of-two"),
        (TakeOvers, "problem", lambda self, worker: "", "fallback"),
    ],
    ids=["a void vote counts", "purged too early", "silence does not count", "of two", "no fallback"],
)
def test_with_a_rule_of_local_recovery_broken_a_story_goes_otherwise(
    owner: object, name: str, wrong: object, story: str
) -> None:
    """As above, with bugs that the simulator plants in runs with local recovery."""
    with mock.patch.object(owner, name, wrong):
        try:
            different = check(FOLDER / f"{story}.txt")
        except (AssertionError, StepsMissingError) as error:
            different = repr(error)
    assert different


def test_a_change_shows_as_a_difference_and_rewriting_takes_it_in(story: Path) -> None:
    assert check(story) == ""
    story.write_text(TOLD.replace("epoch 1;", "epoch 7;").replace("servers 1", "servers 3"))
    diff = check(story)
    assert "-    s1 grants A epoch 7; it holds nothing" in diff
    assert "+    s1, s2 and s3 grant A epoch 1; they hold nothing" in diff
    assert "epoch 7" in story.read_text(), "nothing is written unless it is asked for"
    assert check(story, rewrite=True) == ""
    assert check(story) == ""
    assert "s1, s2 and s3 grant A epoch 1" in story.read_text()


def test_rewriting_keeps_what_was_written_by_hand(story: Path) -> None:
    by_hand = "# Why.\n\nservers 1, quorum 1\n\n# Now A.\nwriter A takes over d\n\n# The end.\n"
    story.write_text(by_hand)
    check(story, rewrite=True)
    kept = [line for line in story.read_text().splitlines() if not line.startswith("    ")]
    assert kept == by_hand.splitlines()


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("servers 1, quorum 1\n", 1, "a story begins with an introduction"),
        ("# Why.\n", 1, "a story has at least one step"),
        ("# Why.\n    nothing\nservers 1, quorum 1\n", 2, "something happens before the first step"),
        ("# Why.\nservers 1, quorum 1\n  show d\n", 3, "a step begins at the margin"),
        ("# Why.\nwriter A takes over d\n", 2, "the first step of a story is 'servers {count}"),
        ("# Why.\nservers 1, quorum 2\n", 2, "no larger quorum than that"),
        ("# Why.\nservers 1, quorum 1\nA appends 1 record\n", 3, "there is no writer A yet"),
        ("# Why.\nservers 1, quorum 1\ns2 is killed\n", 3, "there is no server s2: there are s1"),
        ("# Why.\nservers 1, quorum 1\nthe old client asks l\n", 3, "there is no old client yet"),
        ("# Why.\nservers 1, quorum 1\ns1 starts\n", 3, "s1 is running"),
        ("# Why.\nregion of 1 worker\ndriver 2 starts\n", 3, "the next driver is 1"),
        ("# Why.\nregion of 1 worker\nworker 0 dies\n", 3, "no process of worker 0 lives"),
        ("# Why.\nregion of 1 worker\ndriver 1 wants a checkpoint\n", 3, "there is no driver 1 yet"),
        (TOLD + "A dies\nA appends 1 record\n", 10, "A is dead"),
        (TOLD + "s1 is killed\nA appends 1 record\nA appends 1 record\n", 11, "waits for a quorum for a1"),
    ],
)
def test_a_story_that_cannot_be_reported_names_the_place_and_why(
    story: Path, text: str, line: int, why: str
) -> None:
    story.write_text(text)
    with pytest.raises(StoryError) as caught:
        check(story, rewrite=True)
    assert str(caught.value).startswith(f"{story}:{line}: ")
    assert why in str(caught.value)
    assert story.read_text() == text, "and is left as it was"


def test_an_unknown_step_is_refused_with_all_forms_that_are_known(story: Path) -> None:
    with pytest.raises(StoryError, match="no step has the form of 'A sings'") as caught:
        retell(story, TOLD + "A sings\n")
    words, _ = PLAYS[0]
    assert all(f"\n    {form.form}" in str(caught.value) for form in words.forms)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (TOLD, 0, ""),
        (TOLD.replace("epoch 1;", "epoch 7;"), 1, "--rewrite"),
        ("# Why.\nx\n", 1, "story.txt:2: "),
    ],
)
def test_the_command_tells_a_story_and_says_whether_it_went_otherwise(
    story: Path, text: str, code: int, said: str
) -> None:
    story.write_text(text)
    done = CliRunner().invoke(app, ["--story", str(story)])
    assert done.exit_code == code
    assert done.stdout == (TOLD if text.startswith(TOLD[:20]) else "")
    assert said in done.stderr
    assert story.read_text() == text


def test_the_readme_lists_every_story_and_the_command_every_form() -> None:
    text = README.read_text(encoding="utf-8")
    assert all(f"{form.form}\n    {form.what}" in forms() for words, _ in PLAYS for form in words.forms)
    assert not [path.name for path in stories() if f"({path.name})" not in text]


def test_every_form_is_used_by_a_story() -> None:
    steps = [line for path in stories() for line in path.read_text(encoding="utf-8").splitlines()]
    unused = [
        form.form
        for words, _ in PLAYS
        for form in words.forms
        if not any(form.pattern.fullmatch(step) for step in steps)
    ]
    assert not unused


@pytest.mark.parametrize("path", stories(), ids=lambda path: path.stem)
def test_a_story_is_short_and_names_the_rule_it_shows(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    introduction = "\n".join(lines[: lines.index("")])
    assert re.search(r"\b(R\d+|P-\d+)\b", introduction), "its introduction names a rule or a promise"
    assert len(lines) <= LINES_MAX
    assert max(map(len, lines)) <= WIDTH
