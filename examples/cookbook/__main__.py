"""Run a recipe on Spark and print what its sinks wrote:  ./run python -m examples.cookbook sessions

    ./run python -m examples.cookbook                      # their names, and what each shows
    ./run python -m examples.cookbook alerts late_data     # some of them
    ./run python -m examples.cookbook --all --out DIR      # all, and their output stays there

Each is run with two workers and a store of its own on this machine. For a store that survives, see README.md.
"""

import argparse
import importlib
import pkgutil
import sys
import tempfile
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import examples.cookbook as here

DATA = Path(__file__).parent / "data"
STORE = "store"
NO_RECIPES = {"__main__", "parsing"}
RECIPES = sorted(found.name for found in pkgutil.iter_modules(here.__path__) if found.name not in NO_RECIPES)


def recipe(name: str) -> Any:
    """Return the module of a recipe, which has `make_graph(data, out)`."""
    return importlib.import_module(f"examples.cookbook.{name}")


def run_recipe(spark: Any, name: str, out: Path) -> dict[str, list[str]]:
    """Run a recipe to the end of its input. Return the lines of each sink, sorted (they have no order)."""
    import dos

    out.mkdir(parents=True)
    dos.run(spark, recipe(name).make_graph(DATA, out), data_dir=out / STORE).awaitTermination()
    return written(out, last_of_key=getattr(recipe(name), "LAST_OF_KEY", False))


def written(out: Path, *, last_of_key: bool = False) -> dict[str, list[str]]:
    """Return sink -> lines. last_of_key: only the last of the lines that begin with the same column."""
    lines_by_sink: dict[str, list[str]] = {}
    for folder in sorted(entry for entry in out.iterdir() if entry.is_dir() and entry.name != STORE):
        lines = [line for part in folder.glob("part-*.tsv") for line in part.read_text().splitlines()]
        by_key = {line.split("\t")[0] if last_of_key else index: line for index, line in enumerate(lines)}
        lines_by_sink[folder.name] = sorted(by_key.values())
    return lines_by_sink


def shown(found: dict[str, list[str]]) -> str:
    """Return the text to print."""
    return "".join(f"{sink}:\n" + "".join(f"    {line}\n" for line in lines) for sink, lines in found.items())


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="./run python -m examples.cookbook",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="without: list them")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--out", type=Path, help="keep the output in this directory, which must be new")
    options = parser.parse_args(arguments)
    names = RECIPES if options.all else options.names
    for name in names:
        if name not in RECIPES:
            near = get_close_matches(name, RECIPES, 1)
            parser.error(f"there is no recipe {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        if options.out and (options.out / name).exists():
            parser.error(f"{options.out / name} exists already; name another, or remove it")
    if not names:
        for name in RECIPES:
            print(f"{name:22} {recipe(name).__doc__.splitlines()[0]}")
        return
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    conf = SparkConf().setIfMissing("spark.master", "local[4]").setIfMissing("spark.log.level", "ERROR")
    conf.setIfMissing("spark.ui.showConsoleProgress", "false")
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    with tempfile.TemporaryDirectory(prefix="dos-cookbook-") as temporary:
        for name in names:
            print(f"== {name}")
            print(shown(run_recipe(spark, name, (options.out or Path(temporary)) / name)), end="")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
