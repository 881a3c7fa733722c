"""The story of the original service, as it runs today: a worker's files, a fire, and New Year's Eve.

    ./run python -m examples.new_years_eve

A worker keeps its recovery files on its own machine, as in figure 4 of the article that docs/papers.md maps,
and mirrors a journal of every change to two DOS servers. Its machine burns. Another one makes the files again
from what the servers have, and looks up who the worker was connected to at midnight on New Year's Eve. Needs
no Spark.
"""

import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trio

import dos
from examples.demo.cluster import DOS, Cluster

MIDNIGHT = datetime(2018, 1, 1, tzinfo=UTC)
JOURNAL = "resilience.journal"
ADDRESSES = "my_app-worker3.connection-addresses"


class Clock:
    """The worker's clock, which runs through the last evening of 2017 faster than real time."""

    def __init__(self) -> None:
        self.now = MIDNIGHT - timedelta(hours=4)

    def __call__(self) -> int:
        return int(self.now.timestamp() * 1000)


async def work(machine: Path) -> None:
    """Eight hours of worker 3: each hour other peers, and a checkpoint."""
    clock = Clock()
    with dos.LocalClaim(machine / JOURNAL) as claim:
        async with await dos.Directory.open(machine / "resilience", claim, clock_ms=clock) as files:
            await files.append("my_app-worker3.tcp-control", b"localhost\n0\n")
            for hour in range(8):
                peers = f"peers as of {clock.now:%H:%M}: " + ", ".join(
                    f"w{n}" for n in range(6) if n != hour % 6
                )
                await files.truncate(ADDRESSES)
                await files.append(ADDRESSES, peers.encode() + b"\n")
                await files.append("my_app-worker3.checkpoint_ids", b"%d\n" % hour)
                clock.now += timedelta(hours=1)
            await files.wait_synced()


def run_cli(*arguments: str) -> str:
    """Run a dos command as a person would, and print its output. Raises CalledProcessError."""
    print("$ dos " + " ".join(arguments))
    output = subprocess.run([*DOS, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout
    print(output, end="")
    return output


def main() -> str:
    """Run the story; return the peers at midnight."""
    with tempfile.TemporaryDirectory(prefix="new-years-eve-") as folder:
        root = Path(folder)
        cluster = Cluster(root, servers=2)
        try:
            (root / "machine-3").mkdir()
            trio.run(work, root / "machine-3")
            run_cli("files", "mirror", "--once", str(root / "machine-3" / JOURNAL), f"{cluster.url}/worker3")
            before = {path.name: path.read_bytes() for path in (root / "machine-3" / "resilience").iterdir()}
            shutil.rmtree(root / "machine-3")
            print("machine 3 has burnt")
            journal = f"{cluster.url}/worker3/files"
            run_cli("journal", "replay", journal, "--into", str(root / "machine-7"))
            after = {path.name: path.read_bytes() for path in (root / "machine-7").iterdir()}
            if after != before:
                sys.exit("machine 7 has other files than machine 3 had")
            print("machine 7 has every byte that machine 3 had")
            run_cli("journal", "files", journal, "--at", f"time:{MIDNIGHT.isoformat()}")
            return run_cli("journal", "cat", journal, ADDRESSES, "--at", f"time:{MIDNIGHT.isoformat()}")
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
