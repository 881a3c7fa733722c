"""The text of messages and effects: who sends what to whom.

`{}` stands for the worker. Heartbeats are left out.
"""

from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CancelWorker,
    Effect,
    End,
    LaunchWorker,
    NotifyObservers,
    SendControl,
)
from checkpoint.core.coordination.vocabulary import MessageRefused as CoordinatorRefused
from checkpoint.core.links.messages import (
    Committed,
    ControlMessage,
    Failed,
    Finished,
    Join,
    RequestCheckpoint,
    Restore,
    Restored,
    Start,
    Stop,
    View,
    Vote,
)
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import RegionEvent, ResetReport, RestoreSettled, SavepointSettled, WorkerLost
from tests.stories.store.copies import in_words


def cut_in_words(checkpoint: Checkpoint | None) -> str:
    """`checkpoint 2, the end of step 5`, or `the beginning`."""
    return (
        "the beginning"
        if checkpoint is None
        else f"checkpoint {checkpoint.number}, the end of step {checkpoint.step}"
    )


def ordered(message: ControlMessage) -> str:
    """What a coordinator tells a worker; '' for what is not told."""
    match message:
        case Restore(takes_over=True):
            where = cut_in_words(message.restore)
            return f"tells {{}} to take over in term {message.epoch}, from {where}"
        case View():
            return f"tells {{}} that worker {message.peer} is another process, in term {message.term}"
        case Restore(restore=Checkpoint(in_origin=True, workers=parts)):
            at = parts[message.worker].state
            where = f"in the chains of {message.restore.chains_of('')} up to {at}"
            return f"tells {{}} to stand at {cut_in_words(message.restore)}, {where}"
        case Restore(restore=Checkpoint(rewound=True, workers=parts)):
            at = parts[message.worker].state
            return f"tells {{}} to stand at {cut_in_words(message.restore)}, with its chain at {at}"
        case Restore():
            return f"tells {{}} to stand at {cut_in_words(message.restore)}"
        case Start():
            return "tells {} to go"
        case RequestCheckpoint():
            return f"asks {{}} for checkpoint {message.checkpoint}"
        case Committed():
            return f"tells {{}} that checkpoint {message.checkpoint} is committed"
        case Stop():
            return f"tells {{}} to stop: {message.reason}"
    return ""


def reported(message: ControlMessage) -> str:
    """What a worker tells its coordinator; '' for what is not told."""
    match message:
        case Join():
            return "{} joins"
        case Restored():
            return "{} stands there, and owns its directory"
        case Vote():
            at = message.positions.state
            synced = f"all of step {message.step} is synced, up to {at}"
            return f"{{}} votes for checkpoint {message.checkpoint}: {synced}"
        case Failed():
            return f"{{}} fails: {message.kind}, its directory is claimed by incarnation {message.epoch_held}"
        case Finished():
            return "{} has finished"
    return ""


def noticed(event: RegionEvent) -> tuple[str, int | None]:
    """What a coordinator reports, with the worker that it is about; '' for what is printed elsewhere."""
    match event:
        case ResetReport(worker=worker, term=term) if term:
            return f"has started {{}} in term {term}; nobody else was reset", worker
        case ResetReport(reason=reason) if "all workers are reset" in reason:
            return f"has started all workers again: {reason}", None
        case WorkerLost(worker, _, reason):
            return f"has lost {{}}: {reason}", worker
        case SavepointSettled(name, checkpoint, error):
            return f"answers: savepoint {name} holds checkpoint {checkpoint}{error}", None
        case RestoreSettled(to, checkpoint, _, error):
            return f"answers: {to} is restored, which is checkpoint {checkpoint}{error}", None
    return "", None


def performed(effect: Effect) -> tuple[str, int | None]:
    """What a coordinator does, with the worker that it does it to; '' for what is printed elsewhere."""
    match effect:
        case LaunchWorker(worker, attempt):
            return f"launches {{}}, attempt {attempt}", worker
        case CancelWorker(worker, _):
            return "ends {}", worker
        case AppendCheckpoint(checkpoint) if checkpoint.rewound:
            positions = (
                f"with the positions of checkpoint {checkpoint.rolled_back_to}, line {checkpoint.line}"
            )
            return f"appends checkpoint {checkpoint.number} to the manifest, {positions}", None
        case AppendCheckpoint(checkpoint):
            return f"has every vote, and appends checkpoint {checkpoint.number} to the manifest", None
        case CoordinatorRefused(_, refusal):
            return f"refuses {{}}: {refusal.name}, {refusal.text}", None
        case End(state, reason):
            return f"ends: {state.name}, {reason}", None
        case SendControl(_, message):
            return ordered(message), None
        case NotifyObservers(event):
            return noticed(event)
    return "", None


_OF_SEVERAL = {
    " joins": " join",
    " stands ": " stand ",
    " owns its directory": " own their directories",
    " has ": " have ",
    " its driver": " their driver",
    " ends": " end",
    " sends worker": " send worker",
}
"""What is said of one worker, and of several."""


class Told:
    """Lines, in order. What is said of several workers, one after the other, is one line."""

    def __init__(self) -> None:
        self._groups: list[tuple[str, str, list[int]]] = []

    def say(self, text: str) -> None:
        self._groups.append((text, "", []))

    def say_of(self, worker: int, text: str, owner: str = "") -> None:
        """`{}` in the text is the worker; `owner`: of which driver, '' where there is one only."""
        if self._groups and self._groups[-1][:2] == (text, owner):
            self._groups[-1][2].append(worker)
        else:
            self._groups.append((text, owner, [worker]))

    def lines(self) -> list[str]:
        return [_line(*group) for group in self._groups]


def _line(text: str, owner: str, workers: list[int]) -> str:
    if not workers:
        return text
    who = f"workers {in_words(map(str, workers))}" if len(workers) > 1 else f"worker {workers[0]}"
    if len(workers) > 1 and text.startswith("{}"):
        for one, many in _OF_SEVERAL.items():
            text = text.replace(one, many)
    return text.replace("{}", f"{owner}{who}")
