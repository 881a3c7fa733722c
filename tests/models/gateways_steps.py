"""The steps of the model of gateways (`gateways.py`), and what is wrong in a state."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from dos_gateway.core.hadoop import parts_of
from dos_gateway.core.space import BodyExtent
from dos_gateway.core.tree import Change, PutFile
from tests.models.explore import Step
from tests.models.gateways import (
    CLAIMED,
    FINAL,
    OPEN,
    STANDBY,
    Driver,
    Entry,
    GatewayRules,
    GatewaySetup,
    GatewayState,
    Held,
    Lines,
    Member,
    Running,
    TreeState,
)

TAKE_OVER, LOSS, UNSEEN, STOP = range(4)
Found = Iterator[tuple[Step, TreeState]]


class Gateways:
    """The model of gateways: an `explore.Model`."""

    def __init__(self, setup: GatewaySetup, rules: GatewayRules) -> None:
        self.setup, self.rules = setup, rules
        self.lines = Lines(setup, rules)
        self.budget = (setup.take_overs, setup.losses, setup.unseen, setup.stops)
        self._safe: set[tuple[frozenset[int], int]] = set()

    def start(self) -> TreeState:
        first = self.lines.first
        length = self.lines.length[first]
        members = (Member(1, first, (length, 0)),) * 3
        serving = GatewayState(OPEN, 1, first, length, lease=True)
        drivers = (Driver(),) * len(self.setup.scripts)
        return TreeState(members, (serving, GatewayState()), drivers, first)

    def canonical(self, state: TreeState) -> TreeState:
        return state._replace(members=tuple(sorted(state.members)))

    # --- what is lost ---------------------------------------------------------------------------------------

    def loss(self, state: TreeState) -> str:
        if state.wrong:
            return state.wrong
        for pair in combinations(state.members, 2):
            key = frozenset(member.copy for member in pair), state.told
            if key not in self._safe:
                if found := self._missing(self._longest(pair), state.told):
                    return found
                self._safe.add(key)
        return ""

    def _missing(self, line: int, told: int) -> str:
        if not self.lines.continues(line, told):
            return "G1: a gateway that takes over does not find a change on which an answer rests"
        if self.setup.final and self.lines.tree(line, 0).find(parts_of(FINAL)).node is None:
            return "G5: the overwritten file is gone for a gateway that takes over"
        return ""

    def _longest(self, members: tuple[Member, ...]) -> int:
        return max(
            (one.copy for one in members), key=lambda line: (self.lines.epoch(line), self.lines.length[line])
        )

    # --- steps ----------------------------------------------------------------------------------------------

    def steps(self, state: TreeState) -> Found:
        for index, gateway in enumerate(state.gateways):
            yield from self._of_gateway(state, index, gateway)
            if gateway.stopped:
                continue
            if gateway.stage == STANDBY:
                yield from self._claims(state, index, gateway)
            else:
                yield from self._delivers(state, index, gateway)
            if gateway.stage == OPEN:
                yield from self._executes(state, index, gateway)
                yield from self._continues(state, index, gateway)
                yield from self._answers(state, index, gateway)
        for number in range(len(state.drivers)):
            yield from self._of_driver(state, number)

    def _has(self, state: TreeState, what: int) -> bool:
        return state.spent[what] < self.budget[what]

    def _spend(self, state: TreeState, what: int) -> TreeState:
        spent = list(state.spent)
        spent[what] += 1
        return state._replace(spent=tuple(spent))

    def _of_gateway(self, state: TreeState, index: int, gateway: GatewayState) -> Found:
        newest = max(member.claim for member in state.members)
        fenced = gateway.epoch < newest
        if gateway.lease and (fenced or self.setup.leases_end):
            yield ("lease ends", index), _with(state, index, lease=False)
        for at, held in enumerate(gateway.held):
            if not held.arrived:
                came = (*_without(gateway.held, at), held._replace(arrived=True))
                yield ("arrives", held.driver, index), _with(state, index, held=came)
        if gateway.stopped:
            yield ("wakes", index), self._woken(state, index, gateway)
            return
        if gateway.stage != STANDBY and self._has(state, STOP):
            yield ("stops", index), self._spend(_with(state, index, stopped=True), STOP)
        if gateway.stage != STANDBY and fenced:
            yield ("is fenced", index), self._fenced(state, index, gateway)
        if gateway.stage == CLAIMED:
            acknowledged = self._synced(state, index, gateway) >= self.lines.length[gateway.line]
            alone = not any(one.lease for one in state.gateways)
            if (acknowledged or not self.rules.start_before_serving) and (
                alone or not self.rules.wait_out_the_lease
            ):
                lease = not self.rules.start_before_serving
                yield ("opens", index), _with(state, index, stage=OPEN, lease=lease)

    def _woken(self, state: TreeState, index: int, gateway: GatewayState) -> TreeState:
        # What was in its sockets comes to it now.
        held = tuple(one._replace(grown=False) for one in gateway.held)
        woken = _with(state, index, stopped=False, held=held)
        if not self.rules.woken_closes:
            return woken
        for one in (*held, *gateway.running):
            woken = _freed(woken, one)
        return _with(woken, index, held=(), running=())

    def _fenced(self, state: TreeState, index: int, gateway: GatewayState) -> TreeState:
        kept: tuple[Running, ...] = ()
        for one in gateway.running:
            if one.request[0] == "upload" and not one.answer and not self.rules.request_keeps_its_epoch:
                kept = (*kept, one)
            else:
                state = _freed(state, one)
        members = tuple(one._replace(acked=_set(one.acked, index, 0)) for one in state.members)
        standby = GatewayState(held=gateway.held, running=kept)
        return self._put(state._replace(members=members), index, standby)

    def _claims(self, state: TreeState, index: int, gateway: GatewayState) -> Found:
        if not self._has(state, TAKE_OVER):
            return
        epoch = max(member.claim for member in state.members) + 1
        held = gateway.held
        if self.rules.grown_is_sent_on:
            for one in held:
                if one.grown and one.arrived:
                    state = _freed(state, one)
            held = tuple(one for one in held if not (one.grown and one.arrived))
        for pair in combinations(range(3), 3 if self.setup.as_one else 2):
            adopted = self._longest(tuple(state.members[number] for number in pair))
            line = self.lines.extend(adopted, Entry(epoch, "start"))
            members = tuple(
                member._replace(claim=epoch) if number in pair else member
                for number, member in enumerate(state.members)
            )
            claimed = GatewayState(
                CLAIMED, epoch, line, self.lines.length[adopted], held=held, running=gateway.running
            )
            after = self._put(state._replace(members=members), index, claimed)
            yield ("claims", index, pair), self._at_once(self._spend(after, TAKE_OVER), index)

    def _synced(self, state: TreeState, index: int, gateway: GatewayState) -> int:
        synced = sorted(member.acked[index] for member in state.members)[1]
        return synced if self.rules.start_before_serving else max(synced, gateway.adopted)

    def _delivers(self, state: TreeState, index: int, gateway: GatewayState) -> Found:
        length = self.lines.length[gateway.line]
        for number, member in enumerate(state.members):
            if member.acked[index] >= length or (
                member.claim > gateway.epoch and self.rules.claim_is_checked
            ):
                continue
            after = self._appended(member, index, gateway)
            together = (after,) * 3 if self.setup.as_one else _set(state.members, number, after)
            delivered = state._replace(members=together)
            if self._synced(delivered, index, gateway) > self._synced(state, index, gateway):
                delivered = self._grown(delivered, index)
                other = state.gateways[1 - index]
                # What it sent was sent before a newer claim, and that one's gateway opens after this lease.
                if gateway.stage == OPEN and not (other.stage == OPEN and other.epoch > gateway.epoch):
                    delivered = _with(delivered, index, lease=True)
            yield ("delivers", index, number), delivered

    def _appended(self, member: Member, index: int, gateway: GatewayState) -> Member:
        acked = _set(member.acked, index, self.lines.length[gateway.line])
        if member.claim <= gateway.epoch:
            return Member(gateway.epoch, gateway.line, acked)
        fits = self.lines.continues(gateway.line, member.copy)
        return member._replace(copy=gateway.line if fits else member.copy, acked=acked)

    def _grown(self, state: TreeState, index: int) -> TreeState:
        held = tuple(
            one._replace(grown=True) if one.arrived else one for one in state.gateways[1 - index].held
        )
        return _with(state, 1 - index, held=held)

    # --- requests -------------------------------------------------------------------------------------------

    def _executes(self, state: TreeState, index: int, gateway: GatewayState) -> Found:
        for at, held in enumerate(gateway.held):
            if not held.arrived:
                continue
            taken = _with(state, index, held=_without(gateway.held, at))
            if held.gone and self.rules.left_clients_are_dropped:
                yield ("drops", index, held.driver), taken
            elif held.request[0] == "upload":
                line = self.lines.extend(gateway.line, Entry(gateway.epoch, ("piece", held.driver, 0)))
                piece = self.lines.length[line]
                running = Running(held.driver, held.request, held.knew, line, "", 0, (piece,), held.waits)
                yield ("appends a piece", index, held.driver), self._run(taken, index, line, running)
            elif held.request[0] == "rename" and not self.rules.one_step:
                composed = self.lines.compose(gateway.line, gateway.epoch, held.request)
                if composed.change is None:
                    yield from self._composed(taken, index, held, ())
                else:
                    checked = Running(
                        held.driver, held.request, held.knew, gateway.line, "", 0, waits=held.waits
                    )
                    yield (
                        ("has checked", index, held.driver),
                        self._run(taken, index, gateway.line, checked),
                    )
            else:
                yield from self._composed(taken, index, held, ())
            if self.rules.arrival_order:
                return

    def _continues(self, state: TreeState, index: int, gateway: GatewayState) -> Found:
        """Yield the second steps of uploads, and of renames that were checked before."""
        for at, running in enumerate(gateway.running):
            if running.answer:
                continue
            rest = _with(state, index, running=_without(gateway.running, at))
            if running.request[0] == "upload":
                yield from self._composed(rest, index, running, running.pieces)
            else:
                change = self.lines.compose(running.line, gateway.epoch, running.request).change
                assert change is not None
                yield from self._appends(rest, index, running, change, "done", 0)

    def _composed(self, state: TreeState, index: int, one: Held | Running, pieces: tuple[int, ...]) -> Found:
        gateway = state.gateways[index]
        composed = self.lines.compose(gateway.line, gateway.epoch, one.request)
        change = composed.change
        if one.request[0] == "upload" and composed.answer == "done":
            extents = tuple(BodyExtent(piece, 1, 0) for piece in pieces)
            change = PutFile(one.request[1], 0, self.lines.tree(gateway.line, 0).next_id, extents)
        yield from self._appends(state, index, one, change, composed.answer, composed.rests_on, pieces)

    def _appends(
        self,
        state: TreeState,
        index: int,
        one: Held | Running,
        change: Change | None,
        answer: str,
        rests_on: int,
        pieces: tuple[int, ...] = (),
    ) -> Found:
        gateway = state.gateways[index]
        line = gateway.line
        if change is not None:
            line = self.lines.extend(line, Entry(gateway.epoch, change))
            rests_on = self.lines.length[line]
        if answer in ("missing", "exists") and not self.rules.refusals_are_answers:
            rests_on = 0
        elif self.rules.lease and not gateway.lease:
            under_way = self.lines.length[line] > self._synced(state, index, gateway)
            if self.rules.mark_after_composing or not under_way:
                line = self.lines.extend(line, Entry(gateway.epoch, "mark"))
            rests_on = self.lines.length[line]
        running = Running(
            one.driver, one.request, one.knew, gateway.line, answer, rests_on, pieces, one.waits
        )
        yield ("executes", index, one.driver, " ".join(one.request)), self._run(state, index, line, running)

    def _run(self, state: TreeState, index: int, line: int, running: Running) -> TreeState:
        ran = _with(state, index, line=line, running=(*state.gateways[index].running, running))
        return self._at_once(ran, index)

    def _at_once(self, state: TreeState, index: int) -> TreeState:
        found = self._delivers(state, index, state.gateways[index]) if self.setup.as_one else iter(())
        return next(found, ((), state))[1]

    def _answers(self, state: TreeState, index: int, gateway: GatewayState) -> Found:
        synced = self._synced(state, index, gateway)
        for at, running in enumerate(gateway.running):
            if not running.answer or (synced < running.rests_on and self.rules.answers_after_the_quorum):
                continue
            answer = running.answer
            if not self.rules.composed_once and running.request[0] == "read":
                answer = self.lines.compose(gateway.line, gateway.epoch, running.request).answer
            after = _with(state, index, running=_without(gateway.running, at))
            if running.waits:
                after = self._told(after, gateway, running, answer)
            yield ("answers", index, running.driver, answer), after

    def _told(self, state: TreeState, gateway: GatewayState, running: Running, answer: str) -> TreeState:
        lines, number, request = self.lines, running.driver, running.request
        shown = lines.last_change(lines.cut(gateway.line, running.rests_on))
        told, wrong = state.told, ""
        if lines.continues(shown, told):
            told = shown
        elif not lines.continues(told, shown):
            wrong = "G1: it rests on a change that is not in the history of the others"
        if not lines.continues(running.line, running.knew):
            implied = lines.compose(running.knew, 0, request).answer
            if implied != answer:
                wrong = wrong or f"G3: before its request, others knew that it is {implied!r}"
        if request[0] == "read" or answer in ("missing", "exists"):
            rests = lines.compose(lines.cut(gateway.line, running.rests_on), gateway.epoch, request).answer
            if rests != answer and running.rests_on:
                wrong = wrong or f"G3: it rests on a history in which it is {rests!r}"
        winners = state.winners
        if request[0] == "rename":
            if answer == "done":
                winners = tuple(sorted({*winners, number}))
            wrong = wrong or self._renamed(gateway, number, answer, winners)
        elif request[0] == "read" and answer == "missing" and self.setup.final:
            wrong = wrong or "G5: the overwritten file is gone for a reader"
        elif request[0] == "upload" and answer == "done":
            records = lines.records(gateway.line)
            if any(records[piece - 1].change != ("piece", number, 0) for piece in running.pieces):
                wrong = wrong or "the file has other bytes than those that were sent"
        driver = state.drivers[number]._replace(done=state.drivers[number].done + 1, waiting=False)
        drivers = _set(state.drivers, number, driver)
        return state._replace(drivers=drivers, told=told, winners=winners, wrong=wrong)

    def _renamed(self, gateway: GatewayState, number: int, answer: str, winners: tuple[int, ...]) -> str:
        if self.setup.final:
            return ""
        if len(winners) > 1:
            return "G2: both drivers know that they renamed"
        if answer == "missing":
            return "G4: the driver knows that its file is missing"
        final = self.lines.tree(gateway.line, 0).find(parts_of(FINAL)).node
        if answer == "exists" and final is not None and final.id == number + 1:
            return "G4: the driver knows that another file has its place, and it is its own"
        return ""

    # --- drivers --------------------------------------------------------------------------------------------

    def _of_driver(self, state: TreeState, number: int) -> Found:
        driver, script = state.drivers[number], self.setup.scripts[number]
        if not driver.waiting:
            if driver.done < len(script):
                request = script[driver.done]
                held = Held(number, request, state.told, arrived=not self.setup.late)
                drivers = _set(state.drivers, number, driver._replace(waiting=True))
                for index, gateway in enumerate(state.gateways):
                    sent = _with(state._replace(drivers=drivers), index, held=(*gateway.held, held))
                    if self.setup.holds:
                        yield ("sends", number, " ".join(request), index), sent
                    elif gateway.stage == OPEN and not gateway.stopped:
                        # One that is held until the gateway opens is as one that is sent then.
                        yield from self._executes(sent, index, sent.gateways[index])
            return
        for index, gateway in enumerate(state.gateways):
            yield from self._gives_up(state, number, index, gateway)

    def _gives_up(self, state: TreeState, number: int, index: int, gateway: GatewayState) -> Found:
        driver = state.drivers[number]
        free = state._replace(drivers=_set(state.drivers, number, driver._replace(waiting=False)))
        for at, held in enumerate(gateway.held):
            if held.driver != number or not held.waits:
                continue
            if gateway.stage == STANDBY and held.grown and not gateway.stopped and held.arrived:
                yield ("is sent on", number, index), _with(free, index, held=_without(gateway.held, at))
            if self._has(state, LOSS):
                gone = _set(gateway.held, at, held._replace(waits=False, gone=True))
                yield ("gives up", number, index), self._spend(_with(free, index, held=gone), LOSS)
            if self._has(state, UNSEEN) and held.arrived:
                cut_off = _set(gateway.held, at, held._replace(waits=False))
                yield ("is cut off", number, index), self._spend(_with(free, index, held=cut_off), UNSEEN)
        for at, running in enumerate(gateway.running):
            is_own = running.driver == number and running.waits
            if is_own and running.request[0] != "upload" and self._has(state, LOSS):
                lost = _with(free, index, running=_without(gateway.running, at))
                yield ("gets no answer", number, index), self._spend(lost, LOSS)

    def _put(self, state: TreeState, index: int, gateway: GatewayState) -> TreeState:
        return state._replace(gateways=_set(state.gateways, index, gateway))

    def describe(self, step: Step) -> str:
        what, *values = step
        texts = {
            "lease ends": "the lease of gateway {0} ends",
            "stops": "gateway {0} stops",
            "wakes": "gateway {0} wakes up",
            "arrives": "the request of driver {0} arrives at gateway {1}",
            "is fenced": "gateway {0} learns that its claim is lost",
            "opens": "gateway {0} opens",
            "claims": "gateway {0} claims members {1}",
            "delivers": "the appends of gateway {0} reach member {1}",
            "drops": "gateway {0} drops the request of driver {1}, whose connection has ended",
            "appends a piece": "gateway {0} appends the piece of driver {1}",
            "has checked": "gateway {0} has checked the rename of driver {1}",
            "executes": "gateway {0} composes an answer for driver {1}: {2}",
            "answers": "gateway {0} answers driver {1}: {2}",
            "sends": "driver {0} sends to gateway {2}: {1}",
            "is sent on": "gateway {1} sends driver {0} on",
            "gives up": "driver {0} gives up waiting for gateway {1}",
            "is cut off": "driver {0} is cut off from gateway {1}, and gives up",
            "gets no answer": "driver {0} gets no answer of gateway {1}",
        }
        return texts[what].format(*values)


def _set(some: tuple[Any, ...], at: int, value: Any) -> Any:
    return (*some[:at], value, *some[at + 1 :])


def _without(some: tuple[Any, ...], at: int) -> Any:
    return (*some[:at], *some[at + 1 :])


def _with(state: TreeState, index: int, **changes: Any) -> TreeState:
    return state._replace(gateways=_set(state.gateways, index, state.gateways[index]._replace(**changes)))


def _freed(state: TreeState, one: Held | Running) -> TreeState:
    """The driver of a request is sent on, or its connection ends. Bodies are never repeated."""
    if not one.waits:
        return state
    driver = state.drivers[one.driver]._replace(waiting=False)
    if isinstance(one, Running) and one.request[0] == "upload":
        driver = driver._replace(done=driver.done + 1)
    return state._replace(drivers=_set(state.drivers, one.driver, driver))
