"""The start of a server: reads the data directory, replays or begins the group log, and makes the core."""

from typing import Any

from dos_server.core.quota_file import Quota
from dos_server.core.quotas import Quotas
from dos_server.core.server_core import ServerCore
from dos_server.limits import log_slots
from dos_server.ports import Ports
from dos_server.storage import Storage


def start_core(
    storage: Storage, ports: Ports, log_bytes: int, quotas: tuple[Quota, ...] | None, **options: Any
) -> tuple[bytes, ServerCore]:
    """Return the server id and the core. `options`: of the core. `log_bytes`: see `ObjectServer`.
    `quotas`: None: there are none, and nothing is counted.

    Raises CorruptDataError if this is not the complete data of one server, and OSError. Everything is closed
    then, and nothing that was acknowledged is lost.
    """
    server_id, record, _ = storage.start(ports.fresh_id())
    try:
        log = None
        if log_bytes:
            log = storage.start_log(ports.fresh_id(), log_bytes // log_slots)
        else:
            storage.replay_log()
        names = storage.directory_names()  # a replay may have made some
        return server_id, ServerCore(
            server_id=server_id,
            incarnation_id=ports.fresh_id(),
            record=record,
            directory_names=names,
            damaged_names=storage.damaged_among(names),
            stamps=storage.add_stamp(ports.fresh_id()),
            log=log,
            quotas=None if quotas is None else Quotas(quotas, storage.usage_among(names)),
            **options,
        )
    except BaseException:
        storage.abandon()
        raise
