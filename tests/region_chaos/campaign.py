"""Many runs, one after the other, each from a seed of its own; progress lines, and the summary at the end."""

import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from checkpoint.core.region import Recovery
from tests.region_chaos.cast import Cast
from tests.region_chaos.driver import WORKERS
from tests.region_chaos.one_run import EventLog, Result, Run
from tests.region_chaos.output import true_digest
from tests.region_chaos.plan import DEFAULT, Kind, draw

FILES = 4
LINES_A_FILE = 40_000
KEYS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command line."""

    seed: int
    runs: int | None
    minutes: float | None
    faults: Sequence[Kind] = DEFAULT
    keep: Path | None = None
    recovery: Recovery = "global"
    standby: int = 0


class Campaign:
    """Run i of seed S is run 0 of seed S + i: so one number identifies a failed run."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self.options = options
        self.say = say
        self.results: list[Result] = []
        self.reference: Result | None = None

    def go(self) -> bool:
        """Whether the output was the same each time."""
        with ExitStack() as stack:
            folder = self._folder(stack)
            paths = make_input(folder / "input")
            log = EventLog()
            cast = stack.enter_context(Cast(folder, log))
            self.reference = reference = Run(cast, log, paths, folder / "reference").go(0, [])
            if reference.digest != true_digest(paths):
                reference.wrong = reference.wrong or "the run without faults gave a wrong output"
                self.say(f"without faults: WRONG, {reference.wrong}")
                return False
            self.say(f"without faults: output {reference.digest[:12]}, {reference.seconds:.1f} s")
            begun = time.monotonic()
            while not self._over(time.monotonic() - begun):
                run = Run(
                    cast,
                    log,
                    paths,
                    folder / f"run-{len(self.results)}",
                    recovery=self.options.recovery,
                    standby=self.options.standby,
                )
                self._one(run, reference.digest)
            return not self.failed

    def _folder(self, stack: ExitStack) -> Path:
        if self.options.keep is not None:
            self.options.keep.mkdir(parents=True)
            return self.options.keep.resolve()
        folder = Path(tempfile.mkdtemp(prefix="dos-chaos-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _over(self, seconds: float) -> bool:
        runs, minutes = self.options.runs, self.options.minutes
        if self.failed:
            return True
        return (runs is not None and len(self.results) >= runs) or (
            minutes is not None and seconds >= minutes * 60
        )

    def _one(self, run: Run, expected: str) -> None:
        seed = self.options.seed + len(self.results)
        faults = draw(seed, self.options.faults, workers=WORKERS, servers=3)
        result = run.go(seed, faults, expected)
        self.results.append(result)
        number = f"run {len(self.results)}" + (f" of {self.options.runs}" if self.options.runs else "")
        what = ", ".join(result.faults) or "nothing was met"
        pause = (
            f"{result.checkpoints} checkpoints, {result.resets} resets ({result.taken_over} take-overs),"
            f" longest pause {result.longest_pause_s:.1f} s"
        )
        verdict = f"WRONG: {result.wrong}" if result.wrong else "same output"
        self.say(f"{number}, seed {seed}: {what}: {verdict}; {pause}; {result.seconds:.1f} s")
        if result.wrong:
            self.say(f"to see it again: {self.reproduce(seed)}")

    def reproduce(self, seed: int) -> str:
        chosen = self.options.faults
        faults = "" if tuple(chosen) == DEFAULT else f" --faults {','.join(kind.value for kind in chosen)}"
        local = " --recovery local" if self.options.recovery == "local" else ""
        standby = f" --standby {self.options.standby}" if self.options.standby else ""
        return f"./run chaos --runs 1 --seed {seed}{faults}{local}{standby}"

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.results if result.wrong]

    def summary(self) -> dict[str, Any]:
        """For machines."""
        pauses = [result.longest_pause_s for result in self.results]
        return {
            "seed": self.options.seed,
            "runs": len(self.results),
            "identical": len(self.results) - len(self.failed),
            "faults": dict(Counter(kind for result in self.results for kind in result.kinds)),
            "resets": sum(result.resets for result in self.results),
            "taken_over": sum(result.taken_over for result in self.results),
            "checkpoints": sum(result.checkpoints for result in self.results),
            "median_pause_s": round(statistics.median(pauses), 2) if pauses else None,
            "longest_pause_s": round(max(pauses, default=0.0), 2),
            "seconds": round(sum(result.seconds for result in self.results), 1),
            "reference": None if self.reference is None else asdict(self.reference),
            "failed": [
                {**asdict(result), "reproduce": self.reproduce(result.seed)} for result in self.failed
            ],
        }


def make_input(folder: Path) -> list[Path]:
    """Lines of a key and a number that no other line has: the same at each call."""
    folder.mkdir(parents=True)
    rng = random.Random(4)
    paths = [folder / f"part-{index}.txt" for index in range(FILES)]
    for index, path in enumerate(paths):
        numbers = range(index * LINES_A_FILE, (index + 1) * LINES_A_FILE)
        path.write_text("".join(f"k{rng.randrange(KEYS)} {number}\n" for number in numbers))
    return paths
