"""A producer as a process of its own, to be killed: it sends numbers in batches, and says what is recorded.

python -m tests.dataflow.producer_process URL APPLICATION PRODUCER COUNT BATCH
"""

import sys

from dataflow import blocking
from dos_client.blocking import open_store

SCHEMA = "producer string, number bigint"


def rows_of(producer: str, begin: int, count: int) -> list[dict[str, object]]:
    return [{"producer": producer, "number": number} for number in range(begin, begin + count)]


def main(url: str, application: str, producer: str, count: int, batch: int) -> None:
    with (
        open_store(url) as store,
        blocking.open_producer(store, application, "numbers", producer, SCHEMA) as writer,
    ):
        begin = int(writer.last.mark or b"0")
        print("opened", begin, flush=True)
        for at in range(begin, count, batch):
            size = min(batch, count - at)
            writer.wait_recorded(writer.send(rows_of(producer, at, size), mark=b"%d" % (at + size)))
            print("recorded", at + size, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:6]))
