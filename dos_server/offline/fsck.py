"""`dos fsck`: checks a whole data directory as the next start would, and reads every byte. Its server
must not run.

| exit code | meaning |
|---|---|
| 0 | no damage; there may be torn tails, which the next start cuts, and notes |
| 1 | damage was found, whether or not everything was checked |
| 2 | not everything was checked: a server uses the directory, it is no data directory, a file is unreadable |

The code of the start decides what a file is (`core.files.recovery.judge`). The bytes below the synced
size, which no start reads, are then verified from end to end (`core.files.scan`). Memory is bounded by one
part of one object.

Two changes can be requested: to cut torn tails, as the next start would, and to write a new claim where the
old one is lost. Any other damage is only reported.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from dos_protocol.errors import VERDICTS, CorruptDataError, ErrorCode, LocalProtocolError
from dos_protocol.limits import epoch_jump_max, id_bytes
from dos_protocol.names import id_text, is_name
from dos_protocol.store_record import NO_STAMP, decode_store_record
from dos_server import side_files
from dos_server.core.files import findings as f
from dos_server.core.files import records
from dos_server.core.files.extent import object_seed
from dos_server.core.files.findings import Finding, Severity
from dos_server.core.files.records import (
    DIRECTORIES,
    NO_CLAIM,
    OBJECTS,
    STAMPS,
    WITNESSED,
    Entry,
    ObjectMark,
    entry_of_folder,
    entry_of_root,
)
from dos_server.core.files.recovery import RecoveredObject, judge
from dos_server.core.files.scan import DamagedExtentError, ReadAt, VerifyGoal, beginning, verify_part
from dos_server.core.requests.stamps import NO_STAMPS, decode_witnesses, history_of
from dos_server.disk import RealDisk, is_temporary, path_argument, proves_damage, read_file, replace_file
from dos_server.limits import fsck_part_bytes, fsck_part_extents_max
from dos_server.log_files import end_log
from dos_server.marks import DirectoryRegister
from dos_server.offline.reading import LogView, PathSeen


class NotCheckedError(Exception):
    """Nothing, or not everything, could be checked."""


@dataclass
class CheckReport:
    """What was checked and found. `cut`: objects whose torn tail was cut. `raised`: claims. `complete`: all
    was checked.
    """

    directories: int = 0
    objects: int = 0
    bytes_verified: int = 0
    findings: list[Finding] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    complete: bool = False

    def of(self, verdict: Severity) -> list[Finding]:
        return [one for one in self.findings if one.verdict is verdict]


@dataclass
class _Directory:
    name: str
    entries: dict[str, PathSeen]
    marks: dict[str, ObjectMark]
    epoch_max: int = 0


OnProgress = Callable[[str, int, int], None]
"""Called with the place that is being checked, the bytes verified so far, and the total bytes."""


class Check:
    """One check of a data directory. `report` is valid at any time, also after an interruption."""

    def __init__(
        self,
        root: Path,
        *,
        repair: bool = False,
        raise_claims: bool = False,
        on_progress: OnProgress = lambda *_: None,
    ) -> None:
        self.report = CheckReport()
        self._root = root
        self._repair = repair
        self._raise_claims = raise_claims
        self._on_progress = on_progress
        self._total = 0
        self._registered: dict[str, ObjectMark] = {}

    def run(self) -> CheckReport:
        """Check everything. Raises NotCheckedError if there is no data directory or a server uses it."""
        try:
            self._disk = LogView(self._root)
        except OSError as error:
            raise NotCheckedError(f"cannot open {self._root}: {error.strerror}") from error
        try:
            self._require_data_directory()
            changes = self._repair or self._raise_claims
            has_file = changes or "lock" in self._disk.entries("")
            lock = self._disk.lock("lock") if changes else self._disk.lock_existing("lock")
            try:
                self._replay_log(changes=changes)
                self._everything()
                if not has_file and "lock" in self._disk.entries(""):
                    raise NotCheckedError(
                        f"a server was started on {self._root} during the check: stop it first"
                    )
            finally:
                self._disk.close(lock)
        except BlockingIOError as error:
            raise NotCheckedError(
                f"data directory {self._root} is in use by a server: stop it first"
            ) from error
        except OSError as error:
            raise NotCheckedError(f"{self._root}: {error}") from error
        finally:
            self._disk.shut()
        self.report.complete = True
        return self.report

    def _replay_log(self, *, changes: bool) -> None:
        """Carry out what the group log holds, as a start does: in memory, unless this check may change the
        disk.
        """
        try:
            if not changes:
                self._disk.replay()
                return
            disk = RealDisk(self._root)
            try:
                end_log(disk)
            finally:
                disk.shut()
        except CorruptDataError as error:
            self._add(f.of_record(str(error.where), error.expected, error.found, "the server does not start"))

    def _add(self, finding: Finding | None) -> None:
        if finding is not None:
            self.report.findings.append(finding)

    # The data directory itself

    def _require_data_directory(self) -> None:
        names = self._disk.names("") or []
        if "identity" not in names and OBJECTS not in names:
            raise NotCheckedError(f"{self._root} is not a data directory: it has no identity and no objects")
        try:
            records.check_format(read_file(self._disk, "identity"))
        except LocalProtocolError as error:
            raise NotCheckedError(str(error)) from error

    def _everything(self) -> None:
        entries = self._disk.entries("")
        folders = self._disk.entries(OBJECTS) if OBJECTS in entries else {}
        for name in entries:
            entry = entry_of_root(name)
            if entry is not Entry.OWN:
                self._add(f.of_entry(name, entry))
        self._identity(has_objects=any(map(is_name, folders)))
        if OBJECTS not in entries:
            self._add(
                f.of_record(OBJECTS, "the folder of all objects", "no folder", "the server does not start")
            )
        self._register({name for name, seen in folders.items() if is_name(name) and seen.is_folder})
        for name, seen in folders.items():
            if is_name(name) and seen.is_folder:
                inner = self._disk.entries(f"{OBJECTS}/{name}")
                self._total += sum(one.file_bytes for name, one in inner.items() if is_name(name))
        for name, seen in folders.items():
            if not is_name(name):
                self._add(f.of_entry(f"{OBJECTS}/{name}", Entry.UNKNOWN))
            elif not seen.is_folder:
                means = "no client can use the directory"
                self._add(f.of_record(name, "a folder", seen.odd or "a file", means))
            else:
                self._directory(name)

    def _identity(self, *, has_objects: bool) -> None:
        identity = self._small("identity", "the server does not start")
        store = self._small("store", "the server does not start")
        try:
            server_id = records.decode_identity(identity, "identity") if identity is not None else None
        except CorruptDataError as error:
            self._add(f.of_record("identity", error.expected, error.found, "the server does not start"))
            return
        if server_id is None and has_objects:
            means = "the server does not start: the owner of these objects is unknown"
            self._add(f.of_record("identity", "an identity beside objects", "none", means))
        self._stamps(in_store=store is not None)
        if store is None:
            return
        try:
            record = decode_store_record(store)
        except CorruptDataError as error:
            self._add(f.of_record("store", error.expected, error.found, "the server does not start"))
            return
        if server_id is not None and not record.names(server_id):
            means = f"the server was replaced and does not count in store {id_text(record.store_id)}"
            texts = "this server among the members", "other members only"
            self._add(Finding(Severity.NOTE, "store", *texts, means, "nothing"))

    def _register(self, folders: set[str]) -> None:
        means = "the server does not start: which directories it had is unknown"
        data = self._small(DIRECTORIES, means)
        if data is None:
            if not self.report.of(Severity.DAMAGED):
                self._add(f.of_record(DIRECTORIES, "the register of directories", "no file", means))
            return
        self._registered = {mark.name: mark for mark in records.decode_marks(data) if mark is not None}
        bad = records.marks_damaged(data)
        unnamed = folders - self._registered.keys()
        for position in bad:
            severe = len(bad) > len(unnamed)
            self._add(f.of_register(DIRECTORIES, position, means if severe else ""))
        for name, mark in sorted(self._registered.items()):
            if mark.damaged or name not in folders:
                self._add(f.of_lost_directory(f"{OBJECTS}/{name}", is_there=name in folders))
                if self._raise_claims:
                    self._raise_claim(_Directory(name, {}, {}, mark.synced), lost=True)

    def _stamps(self, *, in_store: bool) -> None:
        means, before = "the server does not start", len(self.report.findings)
        stamps, witnessed = self._small(STAMPS, means), self._small(WITNESSED, means)
        if len(self.report.findings) > before:
            return
        missing = NO_STAMP
        try:
            missing = history_of(stamps, witnessed).missing
        except CorruptDataError as error:
            self._add(f.of_record(STAMPS, error.expected, error.found, means))
        try:
            if witnessed is not None:
                decode_witnesses(witnessed)
        except CorruptDataError as error:
            self._add(f.of_record(WITNESSED, error.expected, error.found, means))
        if in_store and stamps is None and witnessed is None:
            texts = "the stamps of this disk, and of the other members", "no files"
            self._add(Finding(Severity.NOTE, STAMPS, *texts, NO_STAMPS, "nothing"))
        if missing.number:
            expected = f"stamp {missing.number}, which another member has recorded"
            lost = "the disk went back in time: the server refuses its store; replace it"
            remedy = VERDICTS[ErrorCode.ROLLED_BACK].remedy
            self._add(Finding(Severity.DAMAGED, STAMPS, expected, "an older copy of the disk", lost, remedy))

    def _small(self, path: str, means: str) -> bytes | None:
        """Return a small file; None if it is missing or unreadable, which is added to the findings."""
        try:
            return read_file(self._disk, path)
        except OSError as error:
            self._unreadable(path, error, f.of_record(path, "a file", _error_text(error), means))
            return None

    def _unreadable(self, path: str, error: OSError, damage: Finding) -> None:
        self._add(f.of_unreadable(path, _error_text(error)) if is_temporary(error) else damage)

    # A directory

    def _directory(self, name: str) -> None:
        path = f"{OBJECTS}/{name}"
        directory = _Directory(name, self._disk.entries(path), self._marks(path))
        self.report.directories += 1
        for file in directory.entries:
            entry = entry_of_folder(file)
            if entry not in (Entry.OWN, Entry.OBJECT):
                self._add(f.of_entry(f"{path}/{file}", entry))
        for one, mark in directory.marks.items():
            if mark.removed:
                self._add(f.of_removed(f"{name}/{one}", there=one in directory.entries))
            elif one not in directory.entries:
                self._add(f.of_lost(f"{name}/{one}", mark, "no file"))
        for one, seen in directory.entries.items():
            if is_name(one) and not (one in directory.marks and directory.marks[one].removed):
                self._object(directory, one, seen)
        self._claim(directory)

    def _marks(self, path: str) -> dict[str, ObjectMark]:
        data = self._small(f"{path}/.marks", "which bytes of its objects were synced is unknown") or b""
        for position in records.marks_damaged(data):
            self._add(f.of_mark(f"{path}/.marks", position))
        return {mark.name: mark for mark in records.decode_marks(data) if mark is not None}

    def _claim(self, directory: _Directory) -> None:
        path = f"{OBJECTS}/{directory.name}/.claim"
        mark = self._registered.get(directory.name)
        if mark is not None:
            if mark.damaged and self._raise_claims:
                return  # it has a new claim
            directory.epoch_max = max(directory.epoch_max, mark.synced)
        data = self._small(path, "no client can use the directory")
        try:
            claim = NO_CLAIM if data is None else records.decode_claim(data, path)
            records.check_claim(claim, path, directory.epoch_max)
        except CorruptDataError as error:
            self._add(f.of_claim(path, error.expected, error.found))
            if self._raise_claims:
                self._raise_claim(directory)

    def _raise_claim(self, directory: _Directory, *, lost: bool = False) -> None:
        """Write a claim above every epoch that a writer can have had. `lost`: a person accepts that its
        objects are gone.
        """
        # Epochs rise by one at each take-over, and by 2^20 when a person forces one.
        claim = records.ClaimRecord(directory.epoch_max + epoch_jump_max, os.urandom(id_bytes))
        disk = RealDisk(self._root)
        try:
            if lost:
                disk.make_folder(f"{OBJECTS}/{directory.name}")
                disk.sync_folder(OBJECTS)
            replace_file(disk, f"{OBJECTS}/{directory.name}", ".claim", records.encode_claim(claim))
            if lost:
                register = DirectoryRegister(disk)
                register.begin_again(directory.name, claim.epoch)
                register.close()
        finally:
            disk.shut()
        self.report.raised.append(f"{directory.name}: epoch {claim.epoch}")

    # An object

    def _object(self, directory: _Directory, name: str, seen: PathSeen) -> None:
        path, mark = f"{directory.name}/{name}", directory.marks.get(name)
        self.report.objects += 1
        if seen.odd:
            self._add(f.of_lost(path, mark, seen.odd))
            return
        try:
            handle = self._disk.open(f"{OBJECTS}/{path}", create=False)
        except OSError as error:
            lost = f.of_lost(path, mark, _error_text(error))
            self._add(lost if proves_damage(error) else f.of_unreadable(path, _error_text(error)))
            return
        try:
            self._opened(directory, name, handle)
        except OSError as error:
            self._unreadable(path, error, f.of_lost(path, mark, _error_text(error)))
        finally:
            self._disk.close(handle)

    def _opened(self, directory: _Directory, name: str, handle: int) -> None:
        path, mark = f"{directory.name}/{name}", directory.marks.get(name)
        disk, seed = self._disk, object_seed(directory.name, name)
        size = disk.size(handle)

        def read(position: int, count: int) -> bytes:
            return disk.read(handle, position, count)

        found = judge(read, size, seed, mark)
        directory.epoch_max = max(directory.epoch_max, found.epoch_max)
        rot = self._verify(path, read, seed, found)
        finding = f.of_object(path, found, size, mark)
        self._add(rot)
        self._add(finding)
        if finding is None and mark is not None and mark.poisoned:
            self._add(f.of_poisoned(path))
        if self._repair and rot is None and finding is not None and finding.verdict is Severity.TORN:
            self._cut(directory.name, name, found, size)

    def _verify(self, path: str, read: ReadAt, seed: int, found: RecoveredObject) -> Finding | None:
        for step in self._steps(read, seed, found):
            if isinstance(step, DamagedExtentError):
                return f.of_rot(path, step)
            self._on_progress(path, self.report.bytes_verified, self._total)
        return None

    def _steps(self, read: ReadAt, seed: int, found: RecoveredObject) -> Iterator[DamagedExtentError | None]:
        chain, goal = beginning(found.root), VerifyGoal(found.size, found.fold.value)
        while chain.offset < goal.size:
            before = chain.position
            try:
                chain = verify_part(read, seed, chain, goal, fsck_part_bytes, fsck_part_extents_max)
            except DamagedExtentError as damage:
                yield damage
                return
            except OSError as error:
                if is_temporary(error):
                    raise
                yield DamagedExtentError(
                    chain.offset, _error_text(error), chain.position, "bytes that can be read"
                )
                return
            self.report.bytes_verified += chain.position - before
            yield None

    def _cut(self, directory: str, name: str, found: RecoveredObject, size: int) -> None:
        disk = RealDisk(self._root)
        try:
            handle = disk.open(f"{OBJECTS}/{directory}/{name}", create=False)
            try:
                side_files.cut_tail(disk, directory, name, handle, found, size)
                disk.sync(handle)
            finally:
                disk.close(handle)
        finally:
            disk.shut()
        self.report.cut.append(f"{directory}/{name}")


def _error_text(error: OSError) -> str:
    return error.strerror or str(error)


# --- The command -------------------------------------------------------------------------------------------


DAMAGED = 1
NOT_CHECKED = 2


def fsck(
    data: Annotated[
        Path,
        typer.Argument(
            parser=path_argument, help="Data directory of a server that is not running.", metavar="DIR"
        ),
    ],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Cut torn tails, keeping a copy aside, as the next start would. Change nothing else.",
        ),
    ] = False,
    raise_claims: Annotated[
        bool,
        typer.Option(
            "--raise-claims",
            help="Replace a lost claim by one that is 2^20 above every epoch found: all writers are"
            " fenced, and the next one takes over. For a server that cannot be replaced.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Verify a data directory: identity, store record, claims, marks, every byte.

    Changes nothing unless --repair or --raise-claims is given. Lists each problem by object and
    offset, with its meaning and what to do. Repair damaged objects from the other servers, with
    `dos store repair`.

    Exit code 0: no damage. Torn tails and leftovers are listed but harmless: a crash
    leaves them, and the next start removes them. 1: something is damaged. 2: not everything
    could be checked.

    Example: dos fsck /var/lib/dos
    """
    problem = ""
    with _ProgressBar(quiet=as_json) as bar:
        check = Check(data, repair=repair, raise_claims=raise_claims, on_progress=bar.show)
        try:
            check.run()
        except NotCheckedError as error:
            problem = str(error)
        except KeyboardInterrupt:
            problem = "interrupted: only a part was checked"
    report = check.report
    if as_json:
        print(json.dumps(report_json(report, problem)))
    elif report.directories or report.findings or report.complete:
        _print_report(report)
    if problem:
        print(f"dos fsck: {problem}", file=sys.stderr)
    if report.of(Severity.DAMAGED):
        raise typer.Exit(DAMAGED)
    if problem or report.of(Severity.UNCHECKED):
        raise typer.Exit(NOT_CHECKED)


def report_json(report: CheckReport, problem: str = "") -> dict[str, Any]:
    return {
        "good": report.complete and not report.of(Severity.DAMAGED) and not report.of(Severity.UNCHECKED),
        "complete": report.complete,
        "problem": problem,
        "directories": report.directories,
        "objects": report.objects,
        "bytes_verified": report.bytes_verified,
        "findings": [one.as_json() for one in report.findings],
        "cut": report.cut,
        "raised": report.raised,
    }


def finding_text(one: Finding) -> str:
    where = "" if one.offset is None else f" from byte {one.offset} on"
    at = "" if one.position is None else f" (position {one.position} of its file)"
    case = f", case {one.case}" if one.case else ""
    return (
        f"{one.place}: {one.verdict.value}{where}{at}{case}\n"
        f"    expected  {one.expected}\n"
        f"    found     {one.found}\n"
        f"    means     {one.means}\n"
        f"    do        {one.todo}"
    )


def _print_report(report: CheckReport) -> None:
    for one in report.findings:
        print(finding_text(one))
    for place in report.cut:
        print(f"{place}: its torn tail was cut, as the next start would have done")
    for claim in report.raised:
        print(f"{claim} was claimed for no writer: the next writer takes over with a higher epoch")
    print(_summary(report))


def _summary(report: CheckReport) -> str:
    damaged, torn, unchecked, notes = (
        len(report.of(one)) for one in (Severity.DAMAGED, Severity.TORN, Severity.UNCHECKED, Severity.NOTE)
    )
    checked = f"{report.objects} objects in {report.directories} directories, {report.bytes_verified} bytes"
    found = f"{damaged or 'nothing'} damaged, {torn} torn tails ({len(report.cut)} cut)"
    return f"{checked} verified: {found}, {unchecked} not checked, {notes} notes"


class _ProgressBar:
    """A progress bar on a terminal, nothing elsewhere; a context manager."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    def show(self, place: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=place, completed=done, total=total)

    def __enter__(self) -> "_ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
