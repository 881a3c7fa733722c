"""What the server's shell runs in threads, as functions: each does its work on the storage and returns the
event that reports it. For harnesses that have no threads."""

from collections.abc import Callable

from dos_server.core import vocabulary as v
from dos_server.storage import Storage


def thread_work(storage: Storage, effect: v.Effect) -> Callable[[], v.Event]:
    """The work behind an effect. A sync is not among them: it has two events."""
    match effect:
        case v.LoadDirectory(directory):
            return lambda: storage.load(directory)
        case v.LoadObject(directory, name):
            return lambda: storage.load_object(directory, name)
        case v.WriteClaim(directory, claim) | v.FileClaim(directory, claim):
            done = v.ClaimStored if isinstance(effect, v.WriteClaim) else v.ClaimFiled
            return lambda: done(directory, claim, storage.store_claim(directory, claim))
        case v.ReadData():
            return lambda: storage.read(effect)
        case v.ReadDigest():
            return lambda: storage.digest(effect)
        case v.WriteRepair(session):
            return lambda: v.RepairWritten(session, storage.write_repair(effect))
        case v.InstallRepair(session, directory, name):
            return lambda: v.RepairInstalled(session, directory, name, storage.install_repair(effect))
        case v.RemoveObject():
            return lambda: storage.remove(effect)
        case v.MakeDirectory(session, directory):
            return lambda: v.DirectoryMade(session, directory, storage.make_directory(directory))
        case v.WriteStoreRecord(session, request_id, record):
            return lambda: v.RecordStored(session, request_id, record, storage.store_record(record))
        case v.WriteStamps():
            return lambda: storage.store_stamps(effect)
        case _:
            raise AssertionError(effect)
