"""A machine of the simulation: an address, a disk, and one incarnation of the server process after the other.

It records what its servers have reported, for the oracles. `nemesis` decides its faults.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from dos_protocol.errors import CorruptDataError
from dos_protocol.store_record import StoreRecord, decode_store_record, encode_store_record
from dos_server.core import vocabulary as v
from dos_server.core.directory_state import LoadState
from dos_server.core.files.records import decode_marks
from dos_server.core.requests.scrub import ScrubPlan
from dos_server.limits import space_check_seconds
from dos_server.storage import Storage
from tests.sim.engine.disk import PowerCutError, SimDisk
from tests.sim.engine.environment import Environment
from tests.sim.engine.network import Network
from tests.sim.oracles.store import Bench
from tests.sim.store.server import ReportedSizes, Server
from tests.sim.visitors import LOOSE
from tests.sim.visitors.visitors import LooseFiles
from tests.support.group_log import removals_in

RESTART_S = 1.0
"""After this time a server that could not start is started again."""


@dataclass
class Speed:
    """Typical times of a machine, in seconds. Each is multiplied by a random factor."""

    sync_s: float = 0.002
    other_s: float = 0.000_3


class Machine:
    """An address, a disk, and a server process. `server_class`: makes the process; `slowness`: the factor by
    which its disk is slower; `hangs`: whether its disk does nothing. `damaged`: the paths of objects that the
    run itself has damaged, and whether their marks still prove what was reported of them. If a power cut has
    lost the mark, before the damage or after it, lost bytes need not be reported."""

    server_class: Callable[["Machine"], Server] = Server

    def __init__(self, env: Environment, network: Network, name: str, rng: Random) -> None:
        self.env = env
        self.network = network
        self.name = name
        self.address = f"{name}:9999"
        self.rng = rng
        self._new_disk()
        self.speed = Speed()
        self.slowness = 1.0
        self.hangs = False
        self.hanging: list[Callable[[], None]] = []
        self.scrub = ScrubPlan(rng.choice([0, 1 << 20]), 1.0, rng.random())
        self.fresh_id = rng.randbytes(16)
        self.last_session = 0
        self.without_power = False
        self.wiped = False
        self.bench = Bench(())
        self.starts = 0
        self.tails_judged = 0
        self.reported = ReportedSizes()
        self.loose = LooseFiles(self)
        self.damaged: dict[str, bool] = {}
        self.removing: set[tuple[str, str]] = set()
        self.removed = 0
        self.had_errors = False
        self.doomed: bytes | None = None
        """Its data is incomplete, and it gets an empty disk with this identity when it dies."""
        self.keeps_disk = False
        """The incomplete disk stays, also over restarts, until a person gives the machine an empty one."""
        self.removed_folder, self.starts_without_it = "", 0
        """The folder that its disk lacks, and how many servers have been started without it."""
        self.reportable_max: dict[tuple[str, str], int] = {}
        self.taken_away_at = 0.0
        """The maximum size that may be reported of objects whose files were removed under the running
        server."""
        self.copies_repaired = 0
        self.records: list[StoreRecord] = []  # all store records that it ever stored
        self.server: Server | None = None

    def prepare(self, record: StoreRecord) -> None:
        """Make it a member of a store before the run begins."""
        storage = Storage(self.disk)
        storage.start(self.fresh_id)
        storage.store_record(v.WriteStoreRecord(0, 0, encode_store_record(record)))
        storage.stop()

    @property
    def identity(self) -> bytes:
        """Return the identity of the server on its disk."""
        return self.fresh_id

    def fresh_stamp(self) -> bytes:
        """Return a stamp that no other start of any machine has. It is not drawn, so no random stream is
        shifted."""
        return ((int.from_bytes(self.fresh_id) + self.starts) % (1 << 128)).to_bytes(16)

    def kept_record(self) -> StoreRecord | None:
        """Return the store record on its disk."""
        kept = self.disk.stable("store")
        return decode_store_record(kept) if kept else None

    def note_effect(self, effect: v.Effect) -> None:
        """Record what is requested of its disk. From now on an object to be removed may be gone, also after a
        crash."""
        self.tails_judged += isinstance(effect, v.LoadObject)
        self.removed += isinstance(effect, v.RemoveObject)
        for key in removals_in(effect):
            self.removing.add(key)
            self.reported.remove_requested(key)
            self.reportable_max.pop(key, None)

    def repaired(self, directory: str, name: str, size: int) -> None:
        """A new copy is installed; from now on only its size counts as reported."""
        self.reported[directory, name] = size
        if directory == LOOSE:
            self.loose[name].cut_to(size)
        if self.damaged.pop(f"d/{directory}/{name}", None) is not None:
            self.copies_repaired += 1

    @property
    def up(self) -> bool:
        return self.server is not None and self.server.alive

    def start(self) -> None:
        """Start a server on the content of the disk. Try again later if its data directory is not
        complete."""
        if self.up:
            return
        was_without_power, self.without_power = self.without_power, False
        if self.doomed is not None and not self.keeps_disk:
            self.lose_disk(self.doomed)
        self.removing.clear()
        self.starts_without_it += 1
        self.reportable_max.clear()  # a start finds what there is
        try:
            self.server = self.server_class(self)
        except (CorruptDataError, OSError) as error:
            self._note(f"cannot start: {error}")
            self.disk.kill()
            self.env.sometimes["start: refused"] += 1
            self.env.after(RESTART_S, self.start)
            return
        except PowerCutError:
            self.power_cut()
            return
        if self.removed_folder == "d":
            self.bench.overlooked(self, "d")
        self.network.listen(self.address, self.server, self.server.accept)
        self._note("is up")
        if was_without_power:
            self.network.power_back(self.address)

    def kill(self) -> None:
        """SIGKILL: what was written is in the page cache and stays."""
        self._end(power=False)
        self.disk.cut_in = None
        self.disk.kill()
        self._note("was killed")

    def stop(self) -> None:
        """End the server as a person does: what it has is on stable storage afterwards, outside the log."""
        server = self.server
        assert server is not None, "a server runs"
        self._end(power=False)
        try:
            server.storage.stop()
        except PowerCutError:
            self.power_cut()
            return
        self.disk.cut_in = None
        self.disk.kill()
        self._note("was stopped")

    def halt(self, reason: str) -> None:
        """End the server without syncing anything: a write or sync failed whose bytes the group log has."""
        self.env.sometimes["log: halt"] += 1
        self._note(f"halts: {reason}")
        self.kill()
        self.env.after(RESTART_S, self.start)

    def _new_disk(self) -> None:
        self.disk = SimDisk()
        self.disk.sometimes = self.env.sometimes
        self.disk.whole_sectors = self.env.with_log  # other runs stay as they are

    def folder_is_removed(self, folder: str, fresh_id: bytes, *, keeps_disk: bool) -> None:
        """A person removes a folder of the data directory, under the running server or before its start:
        `d/DIR`, `d` or `log`. With `keeps_disk` the rest of the disk stays for a while, with the identity.
        """
        running = self.server if self.up else None
        hit = [name for name in self.disk.entries("d") if folder in (f"d/{name}", "d")]
        for directory in hit if running is not None else ():
            there = running.core._tables.directories.get(directory)
            if there is not None:
                written = {(directory, name): state.written for name, state in there.objects.items()}
                self.reportable_max |= written
                self.taken_away_at = running.core._tables.now
        for key in [key for key in self.reported if key[0] in hit or folder == "log"]:
            del self.reported[key]
        self.damaged = {path: is_ for path, is_ in self.damaged.items() if path.split("/")[1] not in hit}
        self.disk.take_away(folder)
        self.doomed, self.keeps_disk, self.had_errors = fresh_id, keeps_disk, True
        # the group log may still have all of a directory that is not registered yet, and makes it again
        names = [mark.name for mark in decode_marks(self.disk.content("directories") or b"") if mark]
        known = folder == "d" or folder.partition("/")[2] in names
        self.removed_folder, self.starts_without_it = folder if known else "", 0
        self.env.sometimes[
            "disk: folder removed " + ("before a start" if running is None else "at work")
        ] += 1
        self._note(f"has its folder {folder} removed")
        if running is not None:
            running.log_is_gone = folder == "log"
            self._expect_noticed(running, folder, running.space_checks + 2)

    def _expect_noticed(self, server: Server, folder: str, checks: int) -> None:
        """A server must notice within two of its checks that a folder is gone."""
        if server is not self.server or not server.alive or self.doomed is None:
            return
        if server.space_checks < checks:
            self.env.after(space_check_seconds, partial(self._expect_noticed, server, folder, checks))
            return
        there = server.core._tables.directories.get(folder.partition("/")[2])
        if folder in ("d", "log") or (there is not None and there.loading is LoadState.READY):
            self.bench.overlooked(self, folder)

    def give_empty_disk(self) -> None:
        """A person gives a machine with an incomplete disk an empty one."""
        self.keeps_disk = False
        if self.doomed is not None:
            if self.up:
                self.kill()
            self.start()

    def lose_disk(self, fresh_id: bytes) -> None:
        """Lose the disk; the next start finds an empty one and creates another identity."""
        self._new_disk()
        self.doomed, self.keeps_disk, self.removed_folder = None, False, ""
        self.reportable_max.clear()
        self.wiped = True
        self.reported.clear()
        self.damaged.clear()
        self.fresh_id = fresh_id
        self._note("lost its disk")

    def put_back(self, record: StoreRecord) -> None:
        """Replace the disk by a backup that was made when the machine had just become a member."""
        self._new_disk()
        self.reported.clear()
        self.damaged.clear()
        self.prepare(record)
        self._note("has the disk from a backup of its first day")

    def go_on(self) -> None:
        """End the hanging of the disk."""
        self.hangs, held, self.hanging = False, self.hanging, []
        for work in held:
            work()

    def power_cut(self) -> None:
        """Cut the power: what was not synced is lost at random."""
        self._end(power=True)
        self.without_power = True
        self.disk.cut_in = None
        self.disk.power_cut(self.rng)
        self.damaged = {path: vouched and self.vouched(path) for path, vouched in self.damaged.items()}
        self._note("lost its power")
        self.bench.power_cut(self)

    def vouched(self, path: str) -> bool:
        """Return whether the mark of an object, as the next start finds it, proves everything that was
        reported of it.
        """
        _, directory, name = path.split("/")
        watermarks = decode_marks(self.disk.content(f"d/{directory}/.marks") or b"")
        vouched = max(
            (
                watermark.synced
                for watermark in watermarks
                if watermark is not None and watermark.name == name
            ),
            default=0,
        )
        return vouched >= self.reported.get((directory, name), 0)

    def _end(self, *, power: bool) -> None:
        if self.server is not None:
            self.server.kill()
            self.network.process_died(self.server, power=power)

    def _note(self, what: str) -> None:
        self.env.trace.note(self.env.now, self.name, what)
