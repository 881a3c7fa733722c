"""Counts the words of text files, durably, on Spark:  ./run python examples/wordcount.py OUT FILE...

Every (word, new count) goes to OUT/part-w*.tsv; a word's last line is its count. Run it again after a crash,
with a store named in DOS_STORE, and it continues from the last checkpoint.
"""

import os
import sys

import pyarrow.compute as pc
from pyspark import SparkConf
from pyspark.sql import SparkSession

import dos


def split(batch):
    words = pc.list_flatten(pc.ascii_split_whitespace(batch["line"]))
    return {"word": words.filter(pc.not_equal(words, ""))}


def wordcount(source, sink):
    graph = dos.Graph("wordcount")
    lines = graph.source("lines", source)
    words = lines.flat_map("words", split, schema="word string", takes="batch")
    words.key_by("by_word", "word").count("counts").sink("out", sink)
    return graph


if __name__ == "__main__":
    out, *paths = sys.argv[1:]
    spark = SparkSession.builder.config(
        conf=SparkConf().setIfMissing("spark.master", "local[4]")
    ).getOrCreate()
    region = dos.run(
        spark, wordcount(dos.FileSource(paths), dos.FileSink(out)), store=os.environ.get("DOS_STORE")
    )
    region.awaitTermination()
    spark.stop()
