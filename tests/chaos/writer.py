"""A writer of the workload, as a process that can be killed and stopped.

    python -m tests.chaos.writer URL DIRECTORY LOG NAME SEED WINDOW DELAY

It opens the store, waits DELAY seconds, takes the chain of the directory over, continues where its history
ends, and appends for ever, at most WINDOW records beyond what is acknowledged; in a manifest's directory
none, so that each record proves the one before (R9). Superseded before its own start is acknowledged it
begins again after a random, doubling time (R17); superseded later it ends with exit code 3. What it says on
standard output, a line each: `store`, `claims EPOCH`, `open EPOCH SEQUENCE`, `superseded HELD`, `fenced EPOCH
HELD`.

All writers of a directory, rivals too, share a scratch beside the log: members are filled from it, and what
is in it was torn by a killed writer and is removed by the next one.

It trusts the store; only the checker verifies.
"""

import random
import sys
from pathlib import Path

import trio

from dos_chaos.workload import AckLog, Workload, keep_taking_over
from dos_client import StoreNotReadyError, open_store
from dos_protocol.errors import FencedError
from journal import Scratch

FENCED = 3


def say(*words: object) -> None:
    print(*words, flush=True)


async def main(
    url: str, directory: str, log_path: Path, name: str, seed: int, window: int, delay_s: float
) -> int:
    scratch = Scratch(log_path.with_name(f"{directory}.scratch"))
    with AckLog(log_path) as log:
        while True:
            try:
                async with open_store(url, client=name) as store:
                    say("store")
                    await trio.sleep(delay_s)
                    claim, writer, sequence = await keep_taking_over(store, directory, scratch, say)
                    say("open", claim.epoch, sequence)
                    try:
                        workload = Workload(writer, log, directory, claim.epoch, sequence)
                        await workload.run(random.Random(f"{seed}/{name}/{claim.epoch}"), window)
                    except FencedError as error:
                        say("fenced", claim.epoch, error.epoch_held)
                        return FENCED
            except StoreNotReadyError as error:
                print(f"not now: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    url, directory, log_path, name, seed, window, delay = sys.argv[1:]
    sys.exit(trio.run(main, url, directory, Path(log_path), name, int(seed), int(window), float(delay)))
