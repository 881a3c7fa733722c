"""The configurations that are explored, and the one in which each switched-off rule loses data.

CI runs the `explored` configurations to the end, with all rules on, and the `long` ones in the rest of the
tests; those `by_hand` are larger. `LOSSES` names for each switch the configuration in which the loss is
found; a test runs them all. After a change, run `python -m tests.models` again and update
docs/decisions/0003, 0010, 0233 and 0278; a test compares them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.models.checkpoints import CheckpointRules, Checkpoints, CheckpointSetup
from tests.models.explore import Model
from tests.models.gateway_times import LeaseRules, Leases, Watches, WatchRules
from tests.models.gateways import FINAL, TEMPORARY, GatewayRules, GatewaySetup
from tests.models.gateways_steps import Gateways
from tests.models.local_recovery import LocalRules, LocalSetup
from tests.models.local_recovery_steps import LocalRecovery
from tests.models.replacement import ReplacementRules, ReplacementSetup
from tests.models.replacement_steps import Replacement
from tests.models.take_over import Rules, Setup
from tests.models.take_over_steps import TakeOver


class Configuration(NamedTuple):
    """One world. `make` gives its model under some rules; `rules`: all of them, on."""

    name: str
    about: str
    make: Callable[[Any], Model]
    rules: Any
    by_hand: bool = False
    long: bool = False


def chain(name: str, about: str, setup: Setup, *, by_hand: bool = False) -> Configuration:
    return Configuration(name, about, lambda rules: TakeOver(setup, rules), Rules(), by_hand)


def checkpoints(name: str, about: str, setup: CheckpointSetup, *, by_hand: bool = False) -> Configuration:
    return Configuration(name, about, lambda rules: Checkpoints(setup, rules), CheckpointRules(), by_hand)


def replacement(name: str, about: str, setup: ReplacementSetup, *, by_hand: bool = False) -> Configuration:
    return Configuration(name, about, lambda rules: Replacement(setup, rules), ReplacementRules(), by_hand)


def local(name: str, about: str, setup: LocalSetup, *, by_hand: bool = False) -> Configuration:
    return Configuration(name, about, lambda rules: LocalRecovery(setup, rules), LocalRules(), by_hand)


def gateways(name: str, about: str, setup: GatewaySetup, *, long: bool = False) -> Configuration:
    return Configuration(name, about, lambda rules: Gateways(setup, rules), GatewayRules(), long=long)


RENAMES = tuple((("rename", path, FINAL),) for path in TEMPORARY)
READS = (("read", FINAL),)
OVERWRITES = (("delete", FINAL), *RENAMES[0])
ABC = (1, 2, 3)
"""Writers A, B and C, one segment each."""
RISING = (0, 1, 2, 3)

_ALL = (
    chain("contenders", "A, B, C; 2 + 1 + 1 records; a wipe", Setup(ABC, RISING, (3, 2, 2), wipes=1)),
    chain(
        "late",
        "A, B, C; 1 + 0 + 0 records; syncs apart, crashes",
        Setup(ABC, RISING, (2, 1, 1), sync_apart=True),
    ),
    chain(
        "late-two",
        "A, B; 1 + 1 records; syncs apart, crashes, a wipe",
        Setup((1, 2), (0, 1, 2), (2, 2), sync_apart=True, wipes=1),
    ),
    chain(
        "duel",
        "A, and B and C with one epoch; 1 record each; a wipe",
        Setup(ABC, (0, 1, 2, 2), (2, 2, 2), wipes=1),
    ),
    chain(
        "roll",
        "A in two segments, then B; 1 record each; a wipe",
        Setup((1, 1, 2), (0, 1, 2), (2, 2, 2), wipes=1),
    ),
    chain(
        "manifest",
        "A, B, C; 2 + 1 + 1 records, one at a time; readers; a wipe",
        Setup(ABC, RISING, (3, 2, 2), manifest=True, wipes=1),
    ),
    chain(
        "trim",
        "A, B, C; snapshots, then DELETE; 1 + 1 + 1 records; a wipe",
        Setup(ABC, RISING, (2, 2, 2), snapshots=True, wipes=1),
    ),
    checkpoints(
        "checkpoints",
        "2 workers, 3 incarnations, 2 checkpoints; positions, votes, a rollback by hand, releases",
        CheckpointSetup(),
    ),
    replacement(
        "replace",
        "c is replaced by d after a take-over that a slept through; a wipe",
        ReplacementSetup("taken over"),
    ),
    replacement(
        "replace-late",
        "the same from generation 1 on, syncs apart, crashes; a wipe",
        ReplacementSetup("joining", sync_apart=True),
    ),
    replacement("replace-moved", "B moves on from generation 1 to 2; a wipe", ReplacementSetup("moved on")),
    replacement(
        "replace-crash",
        "as replace; syncs apart, crashes, a wipe",
        ReplacementSetup("taken over", sync_apart=True),
        by_hand=True,
    ),
    replacement("replace-joining", "from generation 1 on", ReplacementSetup("joining"), by_hand=True),
    replacement(
        "replace-filled", "d is filled, and A's record is on b only", ReplacementSetup("filled"), by_hand=True
    ),
    replacement(
        "replace-filled-early", "d is filled before A writes", ReplacementSetup("filled early"), by_hand=True
    ),
    replacement("replace-start", "replacement from the beginning; a wipe", ReplacementSetup(), by_hand=True),
    replacement(
        "replace-start-late",
        "replacement from the beginning, syncs apart, crashes; a wipe",
        ReplacementSetup(sync_apart=True),
        by_hand=True,
    ),
    replacement("add", "d is added to a and b; a wipe", ReplacementSetup(change="add"), by_hand=True),
    replacement(
        "other-is-gone",
        "of a and b, a is forced to go on with d, while b lives; a wipe",
        ReplacementSetup(change="other is gone"),
        by_hand=True,
    ),
    chain(
        "late-long",
        "A, B, C; 1 + 1 + 1 records; syncs apart, crashes, a wipe",
        Setup(ABC, RISING, (2, 2, 2), sync_apart=True, wipes=1),
        by_hand=True,
    ),
    chain(
        "trim-long",
        "A, B, C; snapshots, then DELETE; 1 + 2 + 1 records; a wipe",
        Setup(ABC, RISING, (2, 3, 2), snapshots=True, wipes=1),
        by_hand=True,
    ),
    chain(
        "roll-late",
        "A in two segments, then B; syncs apart, crashes, a wipe",
        Setup((1, 1, 2), (0, 1, 2), (2, 2, 2), sync_apart=True, wipes=1),
        by_hand=True,
    ),
    chain(
        "five",
        "5 servers, 3 acknowledge; A, B, C; 1 record each; 2 wipes",
        Setup(ABC, RISING, (2, 2, 2), wipes=2, servers=5, acks=3),
        by_hand=True,
    ),
    chain(
        "all-three",
        "3 servers, 3 acknowledge; A, B, C; 2 + 1 + 1 records; 2 wipes",
        Setup(ABC, RISING, (3, 2, 2), wipes=2, acks=3),
    ),
    chain(
        "two",
        "2 servers, 2 acknowledge; A, B, C; 2 + 1 + 1 records; a wipe",
        Setup(ABC, RISING, (3, 2, 2), wipes=1, servers=2),
    ),
    chain(
        "one",
        "1 server; A, B, C; 2 + 1 + 1 records; syncs apart, crashes",
        Setup(ABC, RISING, (3, 2, 2), sync_apart=True, servers=1, acks=1),
    ),
    local("local", "2 workers, 2 steps; 1 is lost", LocalSetup()),
    local(
        "local-checkpoint",
        "2 workers, 2 steps, a checkpoint; each retains one step; 1 is lost",
        LocalSetup(checkpoints=1, retained_max=1),
    ),
    local(
        "local-twice",
        "2 workers, 2 steps, one at a time; two losses",
        LocalSetup(losses=2, may_be_lost=(0, 1), ahead=1),
    ),
    local(
        "local-owed",
        "2 workers, 3 steps, one at a time or as many as are owed; 1 is lost",
        LocalSetup(steps=3, ahead=1, owed=3),
    ),
    local(
        "local-owed-checkpoint",
        "2 workers, 3 steps, one at a time or as many as are owed, a checkpoint; 1 is lost",
        LocalSetup(steps=3, checkpoints=1, ahead=1, owed=3),
        by_hand=True,
    ),
    local(
        "local-roomy",
        "2 workers, 2 steps, a checkpoint; 1 is lost",
        LocalSetup(checkpoints=1),
        by_hand=True,
    ),
    local(
        "local-three",
        "3 workers, 2 steps, one at a time; 1 is lost",
        LocalSetup(workers=3, ahead=1),
        by_hand=True,
    ),
    gateways("gateways", "2 drivers rename to one name; an answer is lost", GatewaySetup(RENAMES)),
    gateways(
        "gateways-read",
        "a driver renames, and one reads; leases end at any time",
        GatewaySetup((RENAMES[0], READS), losses=0, leases_end=True),
    ),
    gateways(
        "gateways-twice",
        "a driver renames; an answer is lost; 2 take-overs",
        GatewaySetup(RENAMES[:1], take_overs=2),
    ),
    gateways(
        "gateways-overwrite",
        "a driver overwrites a file, and one reads",
        GatewaySetup((OVERWRITES, READS), final=True, losses=0),
    ),
    gateways(
        "gateways-late",
        "a driver overwrites a file; a request arrives late",
        GatewaySetup((OVERWRITES,), final=True, holds=True, late=True, as_one=True),
    ),
    gateways(
        "gateways-cut-off",
        "a driver overwrites a file, and is cut off; 2 take-overs",
        GatewaySetup((OVERWRITES,), final=True, take_overs=2, losses=0, unseen=1, holds=True, as_one=True),
    ),
    gateways(
        "gateways-stopped",
        "besides, a gateway stops and wakes up",
        GatewaySetup(
            (OVERWRITES,), final=True, take_overs=2, losses=0, unseen=1, stops=1, holds=True, as_one=True
        ),
    ),
    gateways(
        "gateways-upload",
        "an upload; 2 take-overs",
        GatewaySetup(((("upload", "/d/new"),),), take_overs=2, losses=0),
    ),
    gateways(
        "gateways-mark",
        "a driver renames, and 2 read; leases end at any time",
        GatewaySetup((RENAMES[0], READS, READS), losses=0, leases_end=True),
        long=True,
    ),
    Configuration("gateway-lease", "times of the lease; suspension, a slow clock", Leases, LeaseRules()),
    Configuration(
        "gateway-watch",
        "times of the watch; a gateway that is cut off, members that lag or are missing",
        Watches,
        WatchRules(),
    ),
)

CONFIGURATIONS = {one.name: one for one in _ALL}
EXPLORED = tuple(one.name for one in _ALL if not one.by_hand and not one.long)
LONG = tuple(one.name for one in _ALL if one.long)

LOSSES = {
    "r1_a_quorum_of_claims": "contenders",
    "r2_claim_is_synced": "contenders",
    "r2_claim_is_checked": "contenders",
    "r3_no_late_watermark": "late-two",
    "r4_sizes_after_the_claim": "contenders",
    "r4_a_wiped_server_has_not_answered": "contenders",
    "r5_epoch_before_length": "contenders",
    "r6_back_pointers": "contenders",
    "r7_settle_before_opening": "contenders",
    "r7_settle_before_rolling": "roll",
    "r8_silent_until_the_start": "contenders",
    "r9_one_record_at_a_time": "manifest",
    "r11_claim_before_reading": "checkpoints",
    "r12_positions_name_their_line": "checkpoints",
    "r12_votes_of_this_incarnation": "checkpoints",
    "r13_base_is_the_position_ordered": "checkpoints",
    "r14_delete_after_the_snapshot": "trim",
    "r14_release_is_a_record": "checkpoints",
    "r15_the_set_is_in_the_record": "replace-start",
    "both_sets": "replace-filled",
    "fence_first": "replace-start",
    "carry_claims": "replace-joining",
    "fill_first": "replace-joining",
    "look_at_f": "replace-joining",
    "refuse_stale": "replace-filled",
    "tell_again": "replace-joining",
    "claim_again": "replace-moved",
    "readers_ask_both_sets": "replace-filled-early",
    "run_after_durable": "local",
    "not_used_is_dropped": "local",
    "newer_terms_wait": "local",
    "purge_at_the_commit": "local",
    "marks_in_the_chain": "local-checkpoint",
    "own_votes_of_the_term": "local-checkpoint",
    "appends_are_settled": "local-checkpoint",
    "full_takes_no_input": "local-checkpoint",
    "waits_for_all": "local-checkpoint",
    "remade_is_retained": "local-twice",
    "run_after_load": "local",
    "claim_is_checked": "gateways",
    "answers_after_the_quorum": "gateways",
    "refusals_are_answers": "gateways-read",
    "composed_once": "gateways-read",
    "lease": "gateways-read",
    "mark_after_composing": "gateways-mark",
    "wait_out_the_lease": "gateways-read",
    "start_before_serving": "gateways-twice",
    "one_step": "gateways",
    "moved_from": "gateways",
    "moved_from_in_the_log": "gateways",
    "replaceable": "gateways-overwrite",
    "request_keeps_its_epoch": "gateways-upload",
    "left_clients_are_dropped": "gateways-late",
    "arrival_order": "gateways-cut-off",
    "grown_is_sent_on": "gateways-cut-off",
    "woken_closes": "gateways-stopped",
    "from_the_sending": "gateway-lease",
    "opens_after_the_wait": "gateway-lease",
    "suspension_counts": "gateway-lease",
    "growth_is_of_a_quorum": "gateway-watch",
    "missing_may_hold": "gateway-watch",
}
"""switch -> the configuration in which the loss is found"""


def switches(rule: str) -> list[str]:
    """The switches that a rule's name means: "R7" both of rule 7, "both_sets" itself."""
    wanted = rule.lower().replace("-", "_")
    return [switch for switch in LOSSES if switch == wanted or switch.split("_")[0] == wanted]


def without(configuration: Configuration, switch: str) -> Model:
    """The configuration's model with one rule off, and nothing else."""
    return configuration.make(configuration.rules._replace(**{switch: False}))
