"""Random histories of regions whose graphs change: programs that start, stop, are killed, stand still, race,
go back and are forked. One seed is one history.
"""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from checkpoint.core.records.lines import forked
from checkpoint.core.records.manifest import ForkOrigin
from tests.sim.upgrading.driver import Driver, Program
from tests.sim.upgrading.durable import Region, Store
from tests.sim.upgrading.edits import Edit, first_graph, make_edit
from tests.sim.upgrading.ideal import Ideal, wrong
from tests.sim.upgrading.rules import Options, Record, operators_of

ROUNDS: Final = 14
POINTS_MAX: Final = 3_000
"""A driver that is not idle after so many points hangs."""


@dataclass(frozen=True)
class Focus:
    """What a history has more of: kinds of edits, actions, and sinks with transactions."""

    kinds: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    outside: float = 0.4


FOCUSES: Final = {
    "all": Focus(),
    "outside": Focus(("remove sink", "drop", "add sink"), ("change", "change", "checkpoint"), outside=0.9),
    "forks": Focus(("add state", "begin anew"), ("fork",) * 8),
    "races": Focus((), ("race", "race", "change", "restore", "damage")),
    "sources": Focus(("add source", "remove source", "rewire"), ("change",) * 3),
    "rows": Focus(("bootstrap",), ("change",) * 3),
}


class History:
    """The history of one region. A fork continues with a history of its own, in the same store."""

    def __init__(
        self, rng: Random, store: Store, region: Region, ideal: Ideal, focus: Focus, *, without: str
    ) -> None:
        self.rng = rng
        self.focus = focus
        self.store = store
        self.region = region
        self.ideal = ideal
        self.without = without
        self.asks = rng.random() < 0.4
        self.programs: list[Program] = []
        """All programs that were committed, newest last."""
        self.asleep: list[Driver] = []
        self.live: Driver | None = None
        self.seen: Counter[str] = ideal.seen
        self.forks = 0
        self.never_ran: Program | None = None
        """In a fork, the program of the original, if the fork begins with another graph: it replaces none."""

    # --- drivers ------------------------------------------------------------------------------------------

    def driver(self, program: Program) -> Driver:
        return Driver(self.region, program, self.rng, without=self.without, asks=self.asks)

    def feed(self) -> None:
        for rows in self.store.inputs.values():
            for _ in range(self.rng.randint(0, 2)):
                at = max(0, len(rows) + self.rng.randint(-4, 3))
                row = {"k": self.rng.randint(0, 2), "k2": self.rng.randint(5, 7), "t": at}
                rows.append({**row, "v": self.rng.randint(1, 9)})

    def play(self, *drivers: Driver, kill: Driver | None = None, after: int = 0) -> None:
        """Advance drivers in a random order until each is idle or has ended. kill: after so many points."""
        busy, points = list(drivers), 0
        while busy:
            one = self.rng.choice(busy)
            if one is kill and after <= 0:
                one.kill()
                self.seen["killed"] += 1
            after -= one is kill
            point = one.advance()
            if one.ended or (point == "idle" and not one.todo):
                busy.remove(one)
            points += 1
            if points > POINTS_MAX:
                raise wrong(f"drivers hang at {point!r}")
        self._follow(drivers)

    def _follow(self, drivers: tuple[Driver, ...]) -> None:
        """Note who runs now, and the program that was committed."""
        for one in drivers:
            if one.changed and one.program not in self.programs:
                self.programs.append(one.program)
        running = [one for one in {self.live, *drivers} if one is not None and self._runs(one)]
        self.live = running[0] if running else None
        self.region.driver = self.live

    def _runs(self, driver: Driver) -> bool:
        return driver.runs and not driver.ended and driver.epoch == self.region.claimed

    def start(self, program: Program, *, after: int | None = None) -> Driver:
        driver = self.driver(program)
        self.play(driver, kill=None if after is None else driver, after=after or 0)
        return driver

    def program_of_last(self) -> Program:
        """Return the program whose graph the region has. A supervisor starts it again with its options."""
        last = self.region.last
        assert last is not None
        return next(
            one for one in reversed(self.programs) if operators_of(one.graph) == last.checkpoint.operators
        )

    def ensure(self) -> Driver:
        """Start the program of the last graph unless it runs."""
        if self.live is None or not self._runs(self.live):
            program = self.program_of_last()
            driver = self.start(program)
            if driver.refused is not None:
                raise wrong(f"the program of the last graph was refused: {driver.refused}")
            if self.live is None:
                raise wrong(f"the program of the last graph does not run: it {driver.ended}")
        assert self.live is not None
        return self.live

    def ask(self, what: str, argument: object = 0) -> None:
        live = self.ensure()
        live.todo.append((what, argument))
        if self.rng.random() < 0.2:
            self.play(live, kill=live, after=self.rng.randint(0, 8))
        else:
            self.play(live)

    def leave(self) -> Driver | None:
        """The driver that runs is killed, or stands still and may wake up later."""
        driver, self.live = self.live, None
        if driver is None:
            return None
        self.region.driver = None
        if self.rng.random() < 0.4:
            driver.todo.append(("steps", 1))
            driver.todo.append(("checkpoint", 0))
            self.asleep.append(driver)
        else:
            driver.kill()
        return driver

    # --- what happens -------------------------------------------------------------------------------------

    def run(self, rounds: int = ROUNDS) -> None:
        if not self.programs:
            graph = first_graph(self.rng, outside=self.focus.outside)
            self.programs.append(Program(graph, workers=self.rng.randint(1, 3)))
            self.start(self.programs[0])
        actions = [*_ACTIONS, *(getattr(History, name) for name in self.focus.actions)]
        for _ in range(rounds):
            self.feed()
            self.rng.choice(actions)(self)
            self.wake()
        self.finish()

    def work(self) -> None:
        self.ask("steps", self.rng.randint(1, 3))

    def checkpoint(self) -> None:
        self.ask("checkpoint")

    def savepoint(self) -> None:
        self.ask("savepoint", f"s{self.region.claimed}-{self.rng.randint(0, 10**6)}")

    def lose(self) -> None:
        self.ask("lose", self.rng.randint(0, 2))

    def kill(self) -> None:
        self.ensure()
        self.leave()
        self.seen["killed"] += 1

    def scale(self) -> None:
        """Stop or kill the program, and start it with another number of workers."""
        program = self.program_of_last()
        self._end_old(self.rng.choice(("stop", "kill")))
        index = self.programs.index(program)
        self.programs[index] = Program(program.graph, program.options, self.rng.randint(1, 3), program.edit)
        self.ensure()

    def wake(self) -> None:
        """One of those that stand still goes on."""
        if self.asleep and self.rng.random() < 0.5:
            one = self.asleep.pop(self.rng.randrange(len(self.asleep)))
            self.seen["woken"] += 1
            before = self.live
            others = () if before is None else (before,)
            if before is not None:
                before.todo.append(("steps", 1))
            self.play(one, *others)

    def _let_notice(self, *drivers: Driver) -> None:
        """Let drivers work on: they notice what another one has claimed, or that it is gone."""
        for one in drivers:
            one.todo += [("steps", 1), ("checkpoint", 0)]
        self.play(*drivers)

    def _end_old(self, how: str) -> None:
        """Let the program end as `how` says: "stop", "kill", or not at all, for "hand over"."""
        live = self.ensure()
        if how == "stop":
            live.todo.append(("stop", 0))
            self.play(live)
        elif how == "kill":
            if self.rng.random() < 0.6:
                live.todo.append(("steps", self.rng.randint(1, 2)))
                if self.rng.random() < 0.5:
                    live.todo.append(("checkpoint", 0))
                self.play(live, kill=live, after=self.rng.randint(0, 14))
            self.leave()
        if how != "hand over":
            self.live = None
            self.region.driver = None

    def new_program(self) -> Program | None:
        last = self.region.last
        assert last is not None
        base = self.program_of_last().graph
        edit = make_edit(base, self.rng, self.focus.kinds)
        if edit is None:
            return None
        edit.options.bootstrap_of = last.checkpoint.voted_as if edit.boot else 0
        workers = self.rng.choice((None, None, 1, 2, 3))
        return Program(edit.graph, edit.options, workers, edit)

    def change(self) -> None:
        """Start another graph, until it is committed, refused, or given up."""
        self.ensure()
        program = self.new_program()
        if program is None:
            return
        how = self.rng.choice(("stop", "stop", "kill", "kill", "hand over"))
        if how == "hand over" and not program.options.bootstrap:
            self._hand_over(program)
            return
        self._end_old("kill" if how == "hand over" else how)
        if program.edit.boot and how == "stop":  # its author makes the rows when the region has stopped
            assert self.region.last is not None
            program.options.bootstrap_of = self.region.last.checkpoint.voted_as
        for attempt in range(3):
            if self._try(program, stopped=how == "stop" and not attempt):
                return
            last = self.region.last
            if program.edit.boot and last is not None and last.kind == "rows" and self.rng.random() < 0.5:
                self.region.damaged.add(last.checkpoint.voted_as)
            program.options.take_back = self.rng.random() < 0.7
            program.options.graph_back = self.rng.random() < 0.5
        self.ensure()

    def _try(self, program: Program, *, stopped: bool) -> bool:
        """Start a changed program once. Return whether nothing more is to be tried."""
        driver = self.driver(program)
        fate = self.rng.random()
        if fate < 0.3:
            self.play(driver, kill=driver, after=self.rng.randint(1, 24))
        elif fate < 0.5:
            self._stands_still(driver)
            return True
        else:
            self.play(driver)
        if program.edit.refuse and driver.refused is not None:
            return True
        if driver.refused is None:
            return driver.changed
        why = driver.refused.why  # type: ignore[union-attr]
        if why == "not quiet" and stopped:
            raise wrong("refused as not quiet, although the region was stopped")
        if why not in ("not quiet", "replaced", "shown for good", "stale", "bootstrap", "no lease"):
            raise wrong(f"refused without a reason: {driver.refused}")
        return why in ("stale", "bootstrap")

    def _stands_still(self, driver: Driver) -> None:
        """A newcomer stands still at some point, and the former program runs again meanwhile."""
        for _ in range(self.rng.randint(1, 24)):
            if driver.advance() in ("", "idle"):
                break
        self._follow((driver,))
        if driver.ended or driver.changed or driver.runs:
            return
        self.seen["a newcomer stands still"] += 1
        self.asleep.append(driver)
        self.live = None
        live = self.ensure()
        live.todo += [("steps", 2), ("checkpoint", 0)]
        if self.rng.random() < 0.6:
            self.play(live, kill=live, after=self.rng.randint(1, 20))
        else:
            self.play(live)

    def _hand_over(self, program: Program) -> None:
        program.options.hand_over = True
        old = self.ensure()
        driver = self.driver(program)
        killed = self.rng.random() < 0.5
        old.todo.append(("steps", 1))
        self.play(driver, old, kill=driver if killed else None, after=self.rng.randint(1, 30))
        self._let_notice(*(one for one in (old, driver) if not one.ended))
        program.options.hand_over = False
        self.seen["handed over" if driver.changed else "not handed over"] += 1
        if self.live is None and not (killed and driver.changed):
            raise wrong(
                f"nobody runs after a hand-over: the old driver {old.ended}, the newcomer {driver.ended}"
            )

    def race(self) -> None:
        """Two programs of different changes begin at the same time; the one that ran was stopped."""
        self.ensure()
        programs = [one for one in (self.new_program(), self.new_program()) if one is not None]
        if len(programs) < 2 or any(one.edit.refuse for one in programs):
            return
        self._end_old("stop")
        drivers = tuple(self.driver(one) for one in programs)
        self.play(*drivers)
        self.seen["raced"] += 1
        left = tuple(one for one in drivers if not one.ended)
        self._let_notice(*left)
        whys = [getattr(one.refused, "why", "") for one in drivers]
        if self.live is None and not all(why in ("replaced", "bootstrap") for why in whys):
            raise wrong(f"nobody runs after two newcomers: {[one.ended for one in drivers]}, {whys}")

    def old_program(self) -> None:
        """A supervisor starts a program of a former graph again, while another one runs."""
        live = self.ensure()
        last = self.region.last
        assert last is not None
        olds = [one for one in self.programs if operators_of(one.graph) != last.checkpoint.operators]
        olds = [one for one in olds if one is not self.never_ran]
        if not olds:
            return
        old = copy.copy(self.rng.choice(olds))
        gone = tuple(name for name in self.program_of_last().graph if name not in old.graph)
        old.options = Options(drop_state=gone, removed=gone, take_back=True)
        driver = self.start(old)
        if driver.refused is None and not driver.ended:
            raise wrong("a program whose graph was replaced was accepted")
        self._let_notice(live)
        if self.live is None:
            raise wrong("a start that was refused ended the driver that ran")

    def restore(self) -> None:
        """Go back to a retained checkpoint, with the program of its graph."""
        live = self.ensure()
        target = self.rng.choice(self.region.kept)
        self._prefer_upgrade(live, target)

    def _prefer_upgrade(self, live: Driver, target: Record) -> None:
        last = self.region.last
        assert last is not None
        if last.upgrades and self.rng.random() < 0.6:
            number = self.rng.choice(last.upgrades)
            target = next(one for one in self.region.kept if one.number == number)
        if target.checkpoint.in_origin:
            return
        live.todo.append(("restore", target.number))
        self.play(live)
        if live.ended == "restored":
            self.seen["restored"] += 1

    def damage(self) -> None:
        """The last checkpoint cannot be read any more: a start goes back to the one before."""
        self.ensure()
        last = self.region.last
        assert last is not None
        others = [one for one in self.region.kept if one.checkpoint.voted_as != last.checkpoint.voted_as]
        shown = last.checkpoint.irrevocable or last.checkpoint.former_sinks
        if shown or not others or others[-1].checkpoint.in_origin:
            return
        program = self.program_of_last() if self.rng.random() < 0.6 else self.new_program()
        if program is None or (program.edit is not None and program.edit.refuse):
            return
        self._end_old(self.rng.choice(("stop", "kill")))
        self.region.damaged.add(self.region.last.checkpoint.voted_as)  # type: ignore[union-attr]
        self.start(program)
        self.seen["fell back"] += 1
        self.region.damaged.clear()

    def fork(self) -> None:
        """Fork the region at its last checkpoint, with another graph, and let the fork run for a while."""
        if self.forks or len(self.store.regions) > 3:
            return
        self.ask("savepoint", f"fork-{len(self.store.regions)}")
        last = self.region.last
        assert last is not None
        if (
            not any(name.startswith("fork-") for name in last.checkpoint.savepoints)
            or last.checkpoint.in_origin
        ):
            return
        self.forks += 1
        self.seen["forked"] += 1
        name = f"{self.region.name}.{len(self.store.regions)}"
        origin = ForkOrigin(
            region=self.region.name, checkpoint=last.number, step=last.checkpoint.step, savepoint="fork"
        )
        region = Region(name, self.store, self.region)
        self.store.regions[name] = region
        first = self.ideal.last.copy()
        first.shown, first.outputs = {}, {}
        ideal = Ideal(region, first)
        ideal.seen = self.seen
        region.claimed = region.opened = 1
        region.append(1, Record(forked(last.checkpoint, origin, 1), dict(last.uids), kind="fork"), None)
        base = self.program_of_last()
        history = History(self.rng, self.store, region, ideal, self.focus, without=self.without)
        program = Program(base.graph, Options(), self.rng.choice((None, 1, 2)), Edit(base.graph, base.graph))
        history.programs.append(program)
        history.begin_fork()

    def begin_fork(self) -> None:
        """The first start of a fork, whose sinks all begin, with a changed graph in half of the cases."""
        program = self.programs[0]
        if self.rng.random() < 0.6:
            other = self.new_program()
            # Rows cannot be added to a state that is still in the chains of the original.
            if other is not None and not other.edit.refuse and not other.edit.boot:
                self.never_ran, program = program, other
        self.start(program, after=self.rng.choice((None, 6, 12)))
        if self.live is None:
            self.start(program)
        if self.live is None:
            raise wrong("the first program of a fork does not run")
        self.run(5)

    def finish(self) -> None:
        """Stop all that stand still, take a last checkpoint, and compare everything."""
        for one in self.asleep:
            one.kill()
        self.asleep.clear()
        live = self.ensure()
        live.todo += [("steps", 2), ("checkpoint", 0)]
        self.play(live)
        self.ideal.check_outputs()
        self.ideal.check_backup(without=self.without)
        for _ in range(3):
            live.todo.append(("checkpoint", 0))
        self.play(live)
        for record in self.region.kept:
            self.ideal.check(record)
        self.ideal.check_held()
        live.kill()


_ACTIONS: Final[list[Callable[[History], None]]] = [
    *(History.work,) * 4,
    *(History.checkpoint,) * 3,
    *(History.change,) * 6,
    History.savepoint,
    History.lose,
    History.kill,
    History.scale,
    History.race,
    History.old_program,
    History.restore,
    History.damage,
    History.fork,
]


def run_history(seed: int, focus: str = "all", *, without: str = "", rounds: int = ROUNDS) -> Counter[str]:
    """Run the history of a seed, and return what was seen. Raises ViolationError."""
    rng, store = Random(seed), Store(without)
    region = store.regions["region"] = Region("region", store)
    history = History(rng, store, region, Ideal(region), FOCUSES[focus], without=without)
    history.run(rounds)
    return history.seen
