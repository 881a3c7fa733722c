"""A site of `test_deployed_sites.py` as one process: its entry point, and what `dos sites run` does.

python -m tests.sites.site_program FILE SITE HOST:PORT PEERS [changed]

It reports every second, so that a test need not wait for half a minute; all else is as it is installed.
With `changed`, the program of its replicas differs from that of the other sites.
"""

import logging
import sys
from functools import partial
from pathlib import Path

import trio

from checkpoint import EntrySettings
from dataflow.entry.serving import EntryOptions, serve_entry
from dataflow.local import run_local
from dos_client import open_store
from sites import runner
from sites.core import site_work
from sites.core.description import decode_description
from tests.sites import graphs

runner.REPORT_S = 1.0  # type: ignore[misc]
site_work.RETRY_S = 2.0  # type: ignore[misc]


def show(states: dict[str, str]) -> None:
    print(" ".join(f"{region} {state}" for region, state in states.items()) or "nothing", flush=True)


async def main(text: str, site: str, address: str, peers: list[str]) -> None:
    description = decode_description(text)
    host, _, port = address.rpartition(":")
    options = EntryOptions(site, peers, EntrySettings(marks_every_us=250_000))
    start = partial(run_local, standby=0, checkpoint_interval=1.0)
    async with open_store(description.entry_store or "") as entry, trio.open_nursery() as nursery:
        serve = partial(serve_entry, host=host, port=int(port))
        await nursery.start(serve, entry, description.application, "loads", options)
        print("serves", flush=True)
        await runner.run_site(description, site, start=start, changed=show)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("dos.sites").setLevel(logging.INFO)
    graphs.changed = "changed" in sys.argv
    file, site, address, peers = sys.argv[1:5]
    trio.run(main, Path(file).read_text(), site, address, peers.split(","))
