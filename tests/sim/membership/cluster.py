"""The cluster of a run with an operator: servers that are in no store yet, the person who changes the store,
and what may be damaged as it changes.

The person is careful: one change at a time, the same command until it is done, a new disk or a new server for
a lost one. Like real people, they sometimes use two terminals.
"""

from contextlib import ExitStack
from random import Random

from dos_client import ReplacementError
from dos_client.core.membership import ServerAnswer, decide
from dos_client.core.quorum import filled_member, replaced_member
from dos_client.core.recovery import era
from dos_protocol.errors import DosError
from dos_protocol.names import id_text
from dos_protocol.store_record import StoreRecord, claims_needed
from tests.sim.engine.guest import scheduled_by
from tests.sim.engine.trace import Trace
from tests.sim.membership.jobs import Job, Operator, UnrepairableError
from tests.sim.oracles.accepted import Loss
from tests.sim.oracles.members import check_copies, check_records
from tests.sim.oracles.oracle import ViolationError
from tests.sim.oracles.repaired import check_repaired
from tests.sim.run import Cluster
from tests.sim.store.server import Machine
from tests.sim.store.shells import ShellReader, ShellWriter

SPARES = 3
UNREPAIRABLE_TIMES = 3
"""So often a repair says that it can do nothing before a person believes it."""
PERSON_S = 0.4
"""How often the person looks, about."""


class MembershipCluster(Cluster):
    """A cluster with an operator. `jobs`: all jobs so far, in order. `lost`: machines whose disk was lost
    while they were members, with the identity they had, and which are not replaced yet.
    """

    LAGS = (1.0, 1.0, 1.0, 5.0, 20.0)
    """A second to and fro is beyond what a look waits for (3 s with its dialling), and while a member is
    added a look needs all of them."""

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
        """Those that are in a store, or were. A server that is to come in has to be empty, so the person
        keeps it out of the reach of others until it is asked in, as `dos store replace` says."""
        return [one for one in self.machines if one.kept_record() is not None]

    def new_writer(self, directory: str) -> ShellWriter:  # type: ignore[override]
        self._writers_made += 1
        name = f"w{self._writers_made}"
        rng = self.rng.stream(name)
        writer = ShellWriter(
            name,
            self.network,
            self.url,
            directory,
            self.history,
            rng,
            pipelined=self.pipelined[directory],
            pace_s=self.paces_s[directory],
        )
        writer.skew = rng.uniform(-0.1, 0.1)
        self.writers.append(writer)
        return writer

    def new_reader(self, directory: str) -> ShellReader:  # type: ignore[override]
        name = f"r{len(self.readers) + 1}"
        reader = ShellReader(name, self.network, self.url, directory, self.history, self.rng.stream(name))
        self.readers.append(reader)
        return reader

    @property
    def operators(self) -> list[Operator]:
        """Those at work."""
        return [one for job in self.jobs for one in job.operators if one.alive]

    def client_names(self) -> list[str]:
        return super().client_names() + [one.name for one in self.operators]

    @property
    def url(self) -> str:
        """The store as the person knows it: the members of the last change that is done."""
        return "dos://" + ",".join(member.address for member in self.record.members)

    # What may be damaged

    def in_force(self) -> list[StoreRecord]:
        """The record that counts, by what servers keep on their disks, and newer ones."""
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
        """Whether it is in a record that counts or may."""
        return any(record.member(machine.identity) is not None for record in self.in_force())

    def may_fail(self, machine: Machine) -> bool:
        """As of any store: one, where the others are enough. While a member is added all are needed."""
        if len(self.history.starts) < len(self.directories) or machine is not self.victim:
            return False
        return not self._others_lost(machine) and all(
            len(record.voters) - 1 >= claims_needed(len(record.voters), record.ack_quorum)
            and all(member.state != "adding" for member in record.members)
            for record in self.in_force()
        )

    def may_lose(self, machine: Machine) -> bool:
        """Whether its disk may be lost: of two members one may, if the person then confirms it (`word`)."""
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
        """Its disk is gone."""
        known = self.lost.get(machine)
        still_named = known is not None and any(one.member(known) is not None for one in self.in_force())
        if self.is_member(machine) and not still_named:
            self.lost[machine] = machine.identity  # else who joins in its own place is lost: as before
        machine.kill()
        machine.lose_disk(fresh_id)

    def lose_too_many(self, rng: Random) -> None:
        """Of the members so many lose their disks that bytes may be gone that were acknowledged; and a person
        continues with the others. Before that, these may be behind for a while, and writers may go with the
        disks: a living member remembers the last stamp it received. Not with visitors about: their directory
        is claimed as all others (decision 0013), and is theirs no more."""
        members = self._sound_members()
        if len(members) <= self.record.ack_quorum or self.crowd is not None:
            return  # nobody would be left
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
        """The members, when nobody changes them and none is lost; else none."""
        if self.busy() or self.lost or self.history.loss is not None or self.in_force() != [self.record]:
            return []
        members = [one for one in self.machines if self.record.member(one.identity) is not None]
        whole = len(members) == len(self.record.members) == len(self.record.voters)
        return members if whole and len(self.history.starts) >= len(self.directories) else []

    def _record_loss(self) -> None:
        """Without confirmation nothing is done, and the command prints what is left."""
        loss = self.history.loss
        if loss is None or loss.bytes:
            return
        loss.note(self.history, [one for one in self.machines if self.is_member(one)])
        self.directories = [one for one in self.directories if one not in loss.broken]  # to write to

    # The person

    def begin(self, job: Job) -> None:
        """A new thing to be done."""
        self.jobs.append(job)
        if job.new is not None and job.new in self.spares:
            self.spares.remove(job.new)
            self.machines.append(job.new)
        self.note("person", f"wants: {job}")
        self.try_job(job)

    def try_job(self, job: Job) -> Operator:
        """One more run of its command."""
        self._operators += 1
        name = f"op{self._operators}"
        self.history.sometimes["operator begins again" if job.tries else f"operator begins: {job.what}"] += 1
        return Operator(self.network, name, self.url, job, self.rng.stream(name), self._operator_ended)

    def replacement(self, rng: Random) -> Job | None:
        """Who is to be replaced, by which server; None when nobody, or nobody is left to do it with."""
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
        return Job("replace", named, new, word=lost is not None and len(record.voters) == 2)

    def _half_done(self) -> Job | None:
        """What the newest record shows to be begun: of two commands that wanted different things, one got its
        way, and may have died since."""
        record = self.in_force()[-1]
        filled, replaced = filled_member(record), replaced_member(record)
        new = next((one for one in self.machines if filled and one.identity == filled.server_id), None)
        if new is None and filled is not None and replaced is not None:  # who joined is lost as well
            there = [one for one in self.machines if one.address == filled.address and one.up]
            new = next(iter(self.spares or there), None)
        if new is None:
            return None
        word = bool(self.lost) and len(record.members) == 2
        return Job(
            "replace" if replaced else "add", id_text(replaced.server_id) if replaced else "", new, word
        )

    def busy(self) -> bool:
        """Whether something is to be brought to its end."""
        return any(not job.over for job in self.jobs)

    def settled(self) -> bool:
        """Whether the person has nothing more to do, the last repair included."""
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
        """What is begun is tried again; after the heal, what was lost is replaced and all copies are
        repaired."""
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
                for path in self.victim.damaged:  # such a repair is not made in the hour of the fault
                    self.victim.disk.forget_cache(path)
                job = self.closing = Job("repair")
            self.begin(job)
        self.env.after(PERSON_S * (0.5 + self._person.random()), self._supervise_jobs)

    def _give_up_adding(self, job: Job) -> None:
        """While one is added all are needed, and one is lost: that one is replaced first, as the command
        says. Who was being added stays away: it is not empty any more."""
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
            word = job.word
            if isinstance(error, UnrepairableError) and self.healed:
                self._give_up_copies(job)
            if job.what == "recover" and self._answered(job, error):
                return
            if job.what == "add" and self.healed and "has damaged objects" in str(error):
                self._give_up_copies(job)
            if "without --other-is-gone" in error.remedy:
                job.word = False
            elif "with --other-is-gone" in error.remedy and self._is_lost(job.old):
                job.word = True
            if job.word != word:
                return  # the same again, as it says
            if not job.alone or (self.healed and isinstance(error, ReplacementError)):
                job.given_up = True  # the person looks at what there is now
            return
        if job.what == "recover" and not job.word:
            raise ViolationError("P-5", "a loss was accepted without a person's word")
        self.note(operator.name, f"is done: {job}")
        self.history.sometimes[f"operator is done: {job.what}"] += 1
        if not job.done:
            job.done = True
            self._changed_to(job)

    def _give_up_copies(self, job: Job) -> None:
        """All are available, but a copy cannot be repaired: what only it had is given up, by a decision."""
        job.unrepairable += 1
        if job.unrepairable % UNREPAIRABLE_TIMES or self.lost:
            return
        if job is self.closing:
            job.given_up, self.closing = True, None
        self.begin(Job("recover"))

    def _answered(self, job: Job, error: DosError) -> bool:
        """What a person makes of a refused `recover`; whether that is all."""
        if "run the command again with --accept-loss" in error.remedy:
            self.history.sometimes["operator: refused without --accept-loss"] += 1
            self._record_loss()
            job.word = True
            return True
        if isinstance(error, ReplacementError) and "nothing to recover" in str(error):
            job.done, job.record = True, self.in_force()[-1]  # an earlier run had come to its end
            self._changed_to(job)
            return True
        return False

    def _is_lost(self, named: str) -> bool:
        """Whether the person knows that this member's disk is gone."""
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
