"""The cluster of a run with an operator: servers that are in no store yet, the person who changes the store,
and what may be damaged as it changes.

The person makes one change at a time, repeats a command until it is done, and uses a new disk or a new server
for a lost one; sometimes two terminals.
"""

from contextlib import ExitStack
from random import Random

from dos_client import ReplacementError
from dos_client.core.membership import ServerAnswer, decide
from dos_client.core.quorum import filled_member, replaced_member
from dos_client.core.replacement import era
from dos_protocol.errors import DosError
from dos_protocol.names import id_text
from dos_protocol.store_record import StoreRecord, claims_needed
from tests.sim.engine.guest import scheduled_by
from tests.sim.engine.trace import Trace
from tests.sim.membership.jobs import Job, Operator, UnrepairableError
from tests.sim.oracles.accepted import Loss
from tests.sim.oracles.store import ViolationError, check_copies, check_records, check_repaired
from tests.sim.run import Cluster
from tests.sim.store.machine import Machine
from tests.sim.store.shells import ShellReader, ShellWriter

SPARES = 3
UNREPAIRABLE_TIMES = 3
"""How often a repair must report that it can do nothing before the person gives the copy up."""
PERSON_S = 0.4
"""Mean time between two actions of the person."""


class MembershipCluster(Cluster):
    """A cluster with an operator. `jobs`: all jobs so far, in order. `lost`: machines whose disk was lost
    while they were members, with the identity they had, and which are not replaced yet.
    """

    LAGS = (1.0, 1.0, 1.0, 5.0, 20.0)
    """A round trip of a second exceeds the time limit of a read view (3 s with dialing), which needs all
    members while one is added."""

    writers: list[ShellWriter]  # type: ignore[assignment]
    readers: list[ShellReader]  # type: ignore[assignment]

    def __init__(self, seed: int, trace: Trace) -> None:
        self.jobs: list[Job] = []
        self.closing: Job | None = None  # the last: all copies are repaired
        self.lost: dict[Machine, bytes] = {}
        self._operators = 0
        super().__init__(seed, trace)
        self.spares = [
            Machine(self.env, self.network, f"s{number}", self.rng.stream(f"machine {number}"))
            for number in range(len(self.machines), len(self.machines) + SPARES)
        ]
        for spare in self.spares:
            spare.bench = self.history.bench
            if trace.kept:
                self.log.listen_to(spare)
            spare.start()
        self._person = self.rng.stream("person")
        self._ports = ExitStack()
        self._ports.enter_context(scheduled_by(self.rng.stream("tasks")))
        self._supervise_jobs()

    # Clients

    def known(self) -> list[Machine]:
        """Return the servers that are or were in a store. A server that is to join must be empty, so the
        person keeps visitors away from it until it joins, as `dos store replace` requires."""
        return [one for one in self.machines if one.kept_record() is not None]

    def _make_writer(self, name: str, directory: str, rng: Random) -> ShellWriter:  # type: ignore[override]
        pipelined, pace_s = self.pipelined[directory], self.paces_s[directory]
        return ShellWriter(
            name, self.network, self.url, directory, self.history, rng, pipelined=pipelined, pace_s=pace_s
        )

    def _make_reader(self, name: str, directory: str, rng: Random) -> ShellReader:  # type: ignore[override]
        return ShellReader(name, self.network, self.url, directory, self.history, rng)

    @property
    def operators(self) -> list[Operator]:
        """Return the operators that run."""
        return [one for job in self.jobs for one in job.operators if one.alive]

    def client_names(self) -> list[str]:
        return super().client_names() + [one.name for one in self.operators]

    @property
    def url(self) -> str:
        """Return the URL of the store as the person knows it: the members after the last completed change."""
        return "dos://" + ",".join(member.address for member in self.record.members)

    # What may be damaged

    def in_force(self) -> list[StoreRecord]:
        """Return the store record in force, by the records on the servers' disks, and newer ones."""
        answers = []
        for machine in self.machines:
            kept = machine.kept_record()
            if kept is not None:
                answers.append(ServerAnswer(machine.address, machine.identity, kept))
        counts = decide(answers, self.record.store_id).record
        oldest = counts.generation if counts is not None else 0
        records = {one.record.generation: one.record for one in answers if one.record is not None}
        return [record for generation, record in sorted(records.items()) if generation >= oldest]

    def is_member(self, machine: Machine) -> bool:
        """Return whether it is in a record that is or may be in force."""
        return any(record.member(machine.identity) is not None for record in self.in_force())

    def may_fail(self, machine: Machine) -> bool:
        """As in the base class: one, if the others are enough. While a member is added, all are needed."""
        if len(self.history.starts) < len(self.directories) or machine is not self.victim:
            return False
        return not self._others_lost(machine) and all(
            len(record.voters) - 1 >= claims_needed(len(record.voters), record.ack_quorum)
            and all(member.state != "adding" for member in record.members)
            for record in self.in_force()
        )

    def may_lose(self, machine: Machine) -> bool:
        """Return whether its disk may be lost: one of two members may, because the person confirms that."""
        if self.may_fail(machine):
            return True
        records = self.in_force()
        return (
            len(self.history.starts) == len(self.directories)
            and machine is self.victim
            and not self._others_lost(machine)
            and len(records) == 1
            and len(records[0].members) == len(records[0].voters) == records[0].ack_quorum == 2
            and bool(self.spares)
            and not self.busy()
        )

    def _others_lost(self, machine: Machine) -> bool:
        return any(one is not machine for one in self.lost)

    def lose(self, machine: Machine, fresh_id: bytes) -> None:
        """Lose the disk of a machine."""
        known = self.lost.get(machine)
        still_named = known is not None and any(one.member(known) is not None for one in self.in_force())
        if self.is_member(machine) and not still_named:
            self.lost[machine] = (
                machine.identity
            )  # otherwise its replacement at its own address is lost, and the entry stays
        machine.kill()
        machine.lose_disk(fresh_id)

    def lose_too_many(self, rng: Random) -> None:
        """Let so many members lose their disks that acknowledged bytes may be lost, and let a person continue
        with the others. Before that, the others may lag for a while; writers may die with the disks, because
        a living writer remembers the last stamp that it received. Not in runs with visitors: the command
        claims their directory like all others (decision 0013), so they could not use it any more."""
        members = self._sound_members()
        if len(members) <= self.record.ack_quorum or self.crowd is not None:
            return  # no member would be left
        going = sorted(rng.sample(members, len(members)), key=lambda one: not one.damaged)
        going, others = going[: self.record.ack_quorum], going[self.record.ack_quorum :]
        paths = [(writer.name, other.name) for writer in self.writers for other in others]
        for path in paths:
            self.network.block(path)

        writers_die = rng.random() < 0.7

        def lose() -> None:
            sound = self._sound_members() == members and not any(one.damaged for one in others)
            for writer in self.writers if sound and writers_die else ():
                self.network.process_died(writer, power=True)
                writer.kill()
            for path in paths:
                self.network.unblock(path)
            if not sound:
                return
            self.history.loss = Loss(set(self.directories), era(self.record.generation))
            for machine in going:
                self.lost[machine] = machine.identity
                machine.kill()
                machine.lose_disk(rng.randbytes(16))
                machine.start()
            self.begin(Job("recover", new=self.spares[0] if self.spares and rng.random() < 0.7 else None))

        self.env.after(rng.choice([0.0, 0.5, 1.5]), self.unless_healed(lose))

    def _sound_members(self) -> list[Machine]:
        """Return the members if no change is in progress and no disk is lost; otherwise none."""
        if self.busy() or self.lost or self.history.loss is not None or self.in_force() != [self.record]:
            return []
        members = [one for one in self.machines if self.record.member(one.identity) is not None]
        whole = len(members) == len(self.record.members) == len(self.record.voters)
        return members if whole and len(self.history.starts) >= len(self.directories) else []

    def _record_loss(self) -> None:
        """Record what the command reports as left when it is refused without confirmation."""
        loss = self.history.loss
        if loss is None or loss.bytes:
            return
        loss.note(self.history, [one for one in self.machines if self.is_member(one)])
        self.directories = [one for one in self.directories if one not in loss.broken]  # that can be written

    # The person

    def begin(self, job: Job) -> None:
        """Begin a new command."""
        self.jobs.append(job)
        if job.new is not None and job.new in self.spares:
            self.spares.remove(job.new)
            self.machines.append(job.new)
        self.note("person", f"begins: {job}")
        self.try_job(job)

    def try_job(self, job: Job) -> Operator:
        """Run its command once more."""
        self._operators += 1
        name = f"op{self._operators}"
        self.history.sometimes["operator begins again" if job.tries else f"operator begins: {job.what}"] += 1
        return Operator(self.network, name, self.url, job, self.rng.stream(name), self._operator_ended)

    def replacement(self, rng: Random) -> Job | None:
        """Draw a replacement: which member, by which server; None if there is no member or server for it."""
        lost = next(iter(self.lost), None)
        record = self.record
        if lost is None and len(record.voters) == 1 and rng.random() < 0.5:
            return None
        old = record.member(self.lost[lost]) if lost is not None else rng.choice(record.members)
        if old is None:
            return None
        same_place = lost is not None and lost.up and rng.random() < 0.4
        new = lost if same_place else (self.spares[0] if self.spares else lost)
        if new is None:
            return None
        named = id_text(old.server_id) if rng.random() < 0.5 else old.address
        return Job("replace", named, new, confirmed=lost is not None and len(record.voters) == 2)

    def _half_done(self) -> Job | None:
        """Return the change that the newest record contains as begun. Of two contradictory commands one has
        begun its change, and may have died since."""
        record = self.in_force()[-1]
        filled, replaced = filled_member(record), replaced_member(record)
        new = next((one for one in self.machines if filled and one.identity == filled.server_id), None)
        if (
            new is None and filled is not None and replaced is not None
        ):  # the disk of the joining server is lost too
            there = [one for one in self.machines if one.address == filled.address and one.up]
            new = next(iter(self.spares or there), None)
        if new is None:
            return None
        confirmed = bool(self.lost) and len(record.members) == 2
        return Job(
            "replace" if replaced else "add", id_text(replaced.server_id) if replaced else "", new, confirmed
        )

    def busy(self) -> bool:
        """Return whether a command is not finished."""
        return any(not job.over for job in self.jobs)

    def settled(self) -> bool:
        """Return whether the person has finished, including the last repair."""
        return self.closing is not None and self.closing.done and not self.busy()

    def heal(self) -> None:
        super().heal()
        for operator in self.operators:
            operator.resume()

    def end(self) -> None:
        for operator in self.operators:
            operator.kill()
        super().end()
        self._ports.close()

    def _supervise_jobs(self) -> None:
        """Repeat commands that are not done; after the heal, replace lost members and repair all copies."""
        for job in self.jobs:
            if not job.over and not any(one.alive for one in job.operators):
                if job.what == "add" and self.lost and job.tries > 1:
                    self._give_up_adding(job)
                else:
                    self.try_job(job)
        if self.healed and not self.busy() and self.closing is None:
            half_done = self._half_done()
            if self.lost and (half_done is None or half_done.what == "add"):
                half_done = self.replacement(self._person)
            job = half_done
            if job is None:
                for path in self.victim.damaged:  # the cache does not keep a file until such a repair
                    self.victim.disk.forget_cache(path)
                job = self.closing = Job("repair")
            self.begin(job)
        self.env.after(PERSON_S * (0.5 + self._person.random()), self._supervise_jobs)

    def _give_up_adding(self, job: Job) -> None:
        """Replace a lost member instead of an addition, which needs all members, as the command advises. The
        server that was being added is not used again, because it is not empty any more."""
        job.given_up = True
        self.history.sometimes["operator gives an addition up"] += 1
        replacement = self.replacement(self._person)
        if replacement is not None:
            self.begin(replacement)

    def _operator_ended(self, operator: Operator, error: DosError | None) -> None:
        job = operator.job
        if error is not None:
            job.last_error = str(error)
            self.note(operator.name, f"{type(error).__name__}: {error}")
            self.history.sometimes[f"operator: {type(error).__name__}"] += 1
            confirmed = job.confirmed
            if isinstance(error, UnrepairableError) and self.healed:
                self._give_up_copies(job)
            if job.what == "recover" and self._answered(job, error):
                return
            if job.what == "add" and self.healed and "has damaged objects" in str(error):
                self._give_up_copies(job)
            if "without --other-is-gone" in error.remedy:
                job.confirmed = False
            elif "with --other-is-gone" in error.remedy and self._is_lost(job.old):
                job.confirmed = True
            if job.confirmed != confirmed:
                return  # the same command again, as the remedy says
            if not job.alone or (self.healed and isinstance(error, ReplacementError)):
                job.given_up = True  # the person begins again from the current state
            return
        if job.what == "recover" and not job.confirmed:
            raise ViolationError("P-5", "a loss was accepted without confirmation")
        self.note(operator.name, f"is done: {job}")
        self.history.sometimes[f"operator is done: {job.what}"] += 1
        if not job.done:
            job.done = True
            self._changed_to(job)

    def _give_up_copies(self, job: Job) -> None:
        """Give up a copy that cannot be repaired although all members are available, after several
        reports."""
        job.unrepairable += 1
        if job.unrepairable % UNREPAIRABLE_TIMES or self.lost:
            return
        if job is self.closing:
            job.given_up, self.closing = True, None
        self.begin(Job("recover"))

    def _answered(self, job: Job, error: DosError) -> bool:
        """React to a refused `recover`. Return whether nothing else is to be done."""
        if "run the command again with --accept-loss" in error.remedy:
            self.history.sometimes["operator: refused without --accept-loss"] += 1
            self._record_loss()
            job.confirmed = True
            return True
        if isinstance(error, ReplacementError) and "nothing to recover" in str(error):
            job.done, job.record = True, self.in_force()[-1]  # an earlier run had finished it
            self._changed_to(job)
            return True
        return False

    def _is_lost(self, named: str) -> bool:
        """Return whether the person knows that this member's disk is lost."""
        return any(named in (id_text(was), machine.address) for machine, was in self.lost.items())

    def _changed_to(self, job: Job) -> None:
        record = job.record
        assert record is not None
        if record.generation > self.record.generation:
            self.record = record
        loss = self.history.loss
        if loss is not None and (job.what == "recover" or era(record.generation) > loss.era):
            loss.clamp(self.history)
        check_records(self.machines)
        check_copies(self, record)
        if job is self.closing:
            check_repaired(self)
        for machine, was in list(self.lost.items()):
            if record.member(was) is None:
                del self.lost[machine]
        if record.member(self.victim.identity) is None or job.new is self.victim:
            addresses = {member.address for member in record.members}
            members = [one for one in self.machines if one.address in addresses]
            self.victim = self._person.choice(members)
