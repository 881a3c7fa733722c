"""Going on after more members were lost than the store is made for: a person accepts the loss.

Rules of this file: the order of the steps. What is asked of the survivors, and done to them, `surviving`
says.

Order. (1) The forced record to the survivors, until it counts: from then on they refuse every session of an
older one. (2) To every other server of the store that can be reached and is not in it: it hears that it is
out. (3) Damaged copies that nobody can mend any more are cut to what is good. (4) An entry in the log of
overrides. (5) Each directory is claimed far above every epoch seen: no writer from before goes on as if
nothing had happened. (6) New members are filled, one after the other. (7) A second entry, that it is done;
without it, the same command goes on from (3).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dos_client.core.comparing import CopyState
from dos_client.core.override_log import ACCEPT_LOSS, Override
from dos_client.core.recovery import StoreSurvivors, forced
from dos_client.errors import LossError, ReplacementError
from dos_client.membership.filling import Progress
from dos_client.membership.record_log import open_record_log
from dos_client.membership.replacing import ProgressReporter, add_to, install_decided, must_be_new
from dos_client.membership.surviving import (
    claim_above,
    cut_damage,
    entry,
    force,
    look_around,
    need_store,
    unfinished,
    what_is_left,
)
from dos_client.repair.repairing import repair_store
from dos_client.sessions.discovery import ServerSurvey
from dos_client.store import Store, open_store
from dos_client.urls import DosUrl, parse_address, parse_url
from dos_protocol.store_record import StoreRecord


@dataclass(frozen=True, slots=True)
class Recovered:
    """`record`: the one in use now; `details`: what was done to what was left, one line each."""

    record: StoreRecord
    details: tuple[str, ...]


async def recover_store(
    url: str | DosUrl,
    *,
    accept_loss: bool = False,
    new: Sequence[str] = (),
    progress: Progress | None = None,
    token: bytes = b"",
    client: str = "dos store recover",
) -> Recovered:
    """Go on with the members that are left, and with the empty servers at the addresses `new`.

    When enough members are there, copies are mended as `repair_store` does; damaged ones that it cannot mend
    are cut to what is good.

    Raises LossError, naming what is missing and what is left, without `accept_loss`; and when nothing
    acknowledged can be lost, because then `replace_member` does it. ReplacementError when nothing has to be
    given up. Interrupted, it is begun again with the same arguments."""
    parsed, tell, added = parse_url(url), ProgressReporter(progress), [parse_address(one) for one in new]
    tell.phase("looking")
    now, seen = await look_around(parsed.servers, token=token, client=client)
    now = need_store(now, seen)
    override = None
    if not now.complete:
        await _must_be_accepted(now, seen, token=token, client=client, accept_loss=accept_loss)
        for address in added:
            await must_be_new(address, token, client)
        tell.phase("forcing")
        record = forced(now)
        await force(record, seen, token=token, client=client)
        override = entry(ACCEPT_LOSS, record, now)
    async with open_store(parsed, token=token, client=client) as store:
        begun = override or await unfinished(store, accept_loss=accept_loss)
        if begun is None:
            return await _accept_damage(store, now, tell, accept_loss=accept_loss)
        if begun.what != ACCEPT_LOSS:
            raise ReplacementError("a replacement is not finished", remedy="run `dos store replace` again")
        return await _finish(store, begun, added, tell)


async def _must_be_accepted(
    now: StoreSurvivors, seen: ServerSurvey, *, token: bytes, client: str, accept_loss: bool
) -> None:
    loss = await what_is_left(now, seen, token=token, client=client)
    if now.covered:
        raise LossError(
            "nothing acknowledged is lost: it is all on the members that are there",
            loss.lines(),
            remedy="put a new server in: dos store replace URL MISSING NEW --other-is-gone",
        )
    if not accept_loss:
        raise LossError(
            f"{len(now.lost)} members are missing, more than the store is made for",
            loss.lines(),
            remedy="start one of them; or, giving up what only they had, say the same with --accept-loss",
        )


async def _accept_damage(
    store: Store, now: StoreSurvivors, tell: ProgressReporter, *, accept_loss: bool
) -> Recovered:
    """Enough members are there; but copies may be damaged that the others cannot mend, for instance because
    one of those is away. A member with such a copy answers for nothing in that directory, and that may be the
    end of it."""
    tell.phase("mending")
    report = await repair_store(store)  # what a server would refuse shows only when it is asked
    left = [one for one in report.repairs if one.verdict is CopyState.DAMAGED and not one.repairable]
    if not left:
        raise ReplacementError(
            "nothing to recover: enough members are there, and no damage that cannot be mended",
            remedy="to mend, `dos store repair`; to change members, `dos store replace` or `dos store add`",
        )
    if not accept_loss:
        raise LossError(
            f"{len(left)} damaged copies cannot be mended by the members that are there",
            [f"  {one.directory}/{one.name} on {one.address}: {one.reason}" for one in left],
            remedy="start the missing members and run `dos store repair`; or, giving up what is damaged,"
            " say the same with --accept-loss",
        )
    tell.phase("cutting")
    details = await cut_damage(store)
    async with open_record_log(store) as records:
        override = entry(ACCEPT_LOSS, store.record, now)
        await records.note(override)
        tell.phase("fencing")
        details += await claim_above(store, {one.directory for one in left})
        await records.note(replace(override, finished=True, details=details))
    tell.phase("done")
    return Recovered(store.record, tuple(details))


async def _finish(store: Store, override: Override, new: Sequence[str], tell: ProgressReporter) -> Recovered:
    tell.phase("cutting")
    details = await cut_damage(store)
    async with open_record_log(store) as records:
        await records.note(override)
        await install_decided(store, records)
        tell.phase("fencing")
        details += await claim_above(store)
        for address in new:
            await add_to(store, records, address, tell)
        await records.note(replace(override, finished=True, details=details))
    tell.phase("done")
    return Recovered(store.record, tuple(details))
