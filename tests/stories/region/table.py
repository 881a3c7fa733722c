"""The step forms of stories of a region: each form, its effect and its text.

One function for each form, named as its effect, with the blanks as arguments.
"""

from checkpoint.core.coordination.vocabulary import CheckpointWanted, RestoreWanted, SavepointWanted
from checkpoint.core.records.lines import forked, needs_original, taken_back
from checkpoint.core.records.manifest import ForkOrigin
from tests.stories.region.play import Play
from tests.stories.words import Vocabulary, WrongStepError

WORDS = Vocabulary()


@WORDS.form("region of {count} worker(s) [with local recovery]", "a region that was never started")
def region(play: Play, count: int, *, with_local_recovery: bool) -> None:
    play.make(count, local=with_local_recovery)


@WORDS.form("driver {number} starts", "it takes over the manifest and launches its own workers")
def driver_starts(play: Play, number: int) -> None:
    if number != len(play.world.drivers) + 1:
        raise WrongStepError(f"the next driver is {len(play.world.drivers) + 1}")
    play.world.start_driver()
    play.settle()


@WORDS.form("every worker does {count} step(s)", "all running workers")
def every_worker_steps(play: Play, count: int) -> None:
    for _ in range(count):
        for process in play.running():
            play.world.work(process)
    play.settle()


@WORDS.form("worker {number} does {count} step(s)", "this worker only")
def worker_steps(play: Play, number: int, count: int) -> None:
    for _ in range(count):
        play.world.work(play.worker(number))
    play.settle()


@WORDS.form("driver {number} wants a checkpoint", "it requests one from its workers")
def wants_a_checkpoint(play: Play, number: int) -> None:
    play.world.feed(play.driver(number), CheckpointWanted())
    play.settle()


@WORDS.form("driver {number} is asked for savepoint {name:directory}", "of the last checkpoint")
def asks_for_savepoint(play: Play, number: int, name: str) -> None:
    play.world.feed(play.driver(number), SavepointWanted(name))
    play.settle()


@WORDS.form(
    "driver {number} is asked to restore savepoint {name:directory}", "the region is to go back to it"
)
def asks_to_restore(play: Play, number: int, name: str) -> None:
    play.world.feed(play.driver(number), RestoreWanted(f"savepoint:{name}"))
    play.settle()


@WORDS.form(
    "savepoint {name:directory} becomes the first record of a fork",
    "which is what the story is about from here on",
)
def forks(play: Play, name: str) -> None:
    checkpoints, workers = play.world.manifest.checkpoints, play.world.workers
    if name not in checkpoints[-1].savepoints:
        raise WrongStepError(f"the last checkpoint has no savepoint {name}")
    number = checkpoints[-1].savepoints[name]
    source = next(checkpoint for checkpoint in checkpoints if checkpoint.number == number)
    origin = ForkOrigin(region="the original", checkpoint=number, step=source.step, savepoint=name)
    play.make(workers)
    manifest = play.world.manifest
    manifest.claimed = 1
    manifest.checkpoints.append(forked(source, origin, incarnation=1))
    play.told.append(
        f"the manifest of the fork has checkpoint 1 on its quorum, the end of step {source.step}"
    )


@WORDS.form(
    "the original reads the manifest of its fork, which retains {count:count} of its checkpoints",
    "and finds whether the fork needs its savepoint",
)
def original_looks(play: Play, count: int) -> None:
    kept = play.world.manifest.checkpoints[-count:]
    origin = kept[-1].origin
    if origin is None:
        raise WrongStepError("the region is no fork")
    needs = needs_original(kept, origin.region, origin.savepoint)
    listed = ", ".join(str(checkpoint.number) for checkpoint in kept)
    rest = "the savepoint stays" if needs else "the savepoint is dropped"
    play.told.append(f"it retains {listed}: {rest}")


@WORDS.form(
    "a reader has read line {line:count} up to step {step:count}", "it compares that with the last checkpoint"
)
def reader_looks(play: Play, line: int, step: int) -> None:
    last = play.world.manifest.checkpoints[-1]
    back = taken_back(last, line, step)
    where = f"checkpoint {last.number} is of line {last.line}"
    if back is None:
        play.told.append(f"{where}: what it has read counts, and it reads on")
    else:
        first = f"its output from step {back.step + 1} on was taken back"
        play.told.append(f"{where}, restored from checkpoint {back.to}: {first}")


@WORDS.form("hold back what worker {number} says", "its messages are in flight, and do not arrive")
def hold_back_worker(play: Play, number: int) -> None:
    process = play.worker(number)
    play.held.append(f"to driver {process.driver.number}.{number}.")


@WORDS.form("what worker {number} said arrives", "in the order in which it was sent")
def worker_arrives(play: Play, number: int) -> None:
    play.held = [one for one in play.held if not one.endswith(f".{number}.")]
    play.settle()


@WORDS.form(
    "hold back what driver {number} appends", "the append is in flight to the manifest, and does not arrive"
)
def hold_back_driver(play: Play, number: int) -> None:
    play.driver(number)
    play.held.append(f"manifest {number - 1}")


@WORDS.form("what driver {number} appended arrives", "and the manifest answers")
def driver_arrives(play: Play, number: int) -> None:
    play.held.remove(f"manifest {number - 1}")
    play.settle()


@WORDS.form("worker {number} dies", "its process is killed")
def worker_dies(play: Play, number: int) -> None:
    play.world.kill(play.worker(number))
    play.settle()


@WORDS.form("worker {number} hangs", "its process is stopped: it sends nothing and answers nothing")
def worker_hangs(play: Play, number: int) -> None:
    process = play.worker(number)
    play.world.hung.append(process.link)
    prefix = f"{process.driver.number}.{number}.{process.attempt}"
    play.held += [f"{verb} {prefix}" for verb in ("to worker", "order")]


@WORDS.form("{seconds} s of pings pass", "each worker pings the next one, the last worker the first one")
def pings(play: Play, seconds: float) -> None:
    for _ in range(int(seconds)):
        play.world.pass_a_second()
        play.settle()


@WORDS.form("driver {number} dies", "its process is killed; its append in flight is lost")
def driver_dies(play: Play, number: int) -> None:
    play.world.kill_driver(play.driver(number))
    play.settle()


@WORDS.form("driver {number} dies, and its append arrives", "no process receives the answer")
def driver_dies_append_arrives(play: Play, number: int) -> None:
    driver = play.driver(number)
    if not driver.jobs:
        raise WrongStepError(f"driver {number} has nothing on its way to the manifest")
    play.world.append_and_die(driver)
    play.settle()


@WORDS.form("show the manifest", "print its claim and its checkpoints; this changes nothing")
def show(play: Play) -> None:
    manifest = play.world.manifest
    play.told.append(f"claimed with epoch {manifest.claimed}")
    for checkpoint in manifest.checkpoints:
        at = ", ".join(
            f"worker {number} at {one.state}" for number, one in sorted(checkpoint.workers.items())
        )
        behind = f"behind checkpoint {checkpoint.parent}" if checkpoint.parent else "the first"
        play.told.append(
            f"checkpoint {checkpoint.number}, {behind}: end of step {checkpoint.step}, incarnation"
            f" {checkpoint.incarnation}; {at}"
        )
