"""A shop: two consistent regions and a board outside of any, on Spark, fed by tills through the store.

    ./run python examples/shop.py dos://HOST              # the application, until the input is closed
    ./run python examples/shop.py dos://HOST till-1 20    # a till that sells 20 things; there may be many
    ./run python examples/shop.py dos://HOST close        # no more input: the application ends

A till that was killed and is started again continues after the last recorded row.
"""

import sys

from pyspark import SparkConf
from pyspark.sql import SparkSession

import dos

SALES = "item string, till string, number bigint"
ITEMS = ("bread", "milk", "salt")


def shop():
    graph = dos.Graph("shop")
    sales = graph.source("sales", dos.InputSource("sales", SALES)).annotate(dos.consistent(period=1))
    sales.sink("sold", dos.LogSink(publish="step"))
    graph.annotate("seen", dos.autonomous)
    sales.filter("seen", lambda row: row["item"] == "salt").sink("board", dos.CallSink(print))
    again = graph.source("by_log", dos.LogSource("sold", SALES)).annotate(dos.consistent(period=5))
    again.key_by("by_item", "item").count("counts").sink("stock", dos.LogSink())
    return graph


def sell(url, till, count):
    with (
        dos.blocking.open_store(url) as store,
        dos.blocking.open_producer(store, "shop", "sales", till, SALES) as producer,
    ):
        for number in range(int(producer.last.mark or b"0"), count):
            row = {"item": ITEMS[number % len(ITEMS)], "till": till, "number": number}
            producer.wait_recorded(producer.send([row], mark=b"%d" % (number + 1)))
            print(f"{till}: sale {number} is recorded")


def main(url, *what):
    if what == ("close",):
        with dos.blocking.open_store(url) as store:
            dos.blocking.close_input(store, "shop", "sales")
    elif what:
        sell(url, what[0], int(what[1]))
    else:
        spark = SparkSession.builder.config(
            conf=SparkConf().setIfMissing("spark.master", "local[4]")
        ).getOrCreate()
        graph = shop()
        graph.explain()
        dos.run(spark, graph, workers=1, store=url).awaitTermination()
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
