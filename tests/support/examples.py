"""The Python examples of README.md and of the pages in docs/, and the tests that run them.

An example is a block ```python that follows a line `<!-- example: NAME -->`. A test loads it with `example`,
or runs it with `run_example`. `RUN_BY` names the test file that runs each example; `tests/test_examples.py`
fails if a page has a block that is not marked, not in the table, or not named in that file.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")))
COMMANDS = re.compile(r"<!-- commands: (\w+) -->\n```\n(.*?)```", re.DOTALL)
MARKED = re.compile(r"<!-- example: (\w+) -->\n```python\n(.*?)```", re.DOTALL)

MANUAL = "tests/dataflow/test_operators_manual.py"
ON_SPARK = "tests/spark_integration/test_examples_on_spark.py"
EDITED = "tests/spark_integration/test_edited_on_spark.py"
ROWS = "tests/dataflow/test_retained_rows.py"
RUN_BY: dict[str, dict[str, tuple[str, ...]]] = {
    "README.md": {ON_SPARK: ("changed_line",), "tests/test_wheel.py": ("wordcount",)},
    "docs/sites.md": {"tests/sites/test_sites_page.py": ("sites_graphs", "sites_producer")},
    "docs/cookbook.md": {EDITED: ("edit",)},
    "docs/inputs.md": {
        ON_SPARK: ("input", "producer"),
        ROWS: ("retained",),
        "tests/dataflow/test_entry_points.py": ("entry", "entry_producer"),
    },
    "docs/journaled-files.md": {
        "tests/journal/test_examples.py": (
            *("change", "restore", "trim", "local", "damaged", "blocking", "mirror", "archive"),
        ),
    },
    "docs/metrics.md": {"tests/dos_client/test_metrics.py": ("serve",)},
    "docs/operating-regions.md": {MANUAL: ("delivery", "failure"), ON_SPARK: ("listener",)},
    "docs/changing-regions.md": {ON_SPARK: ("autoscale",)},
    "docs/gateway.md": {
        "tests/spark_integration/test_checkpoints.py": ("checkpoints",),
        "tests/dos_gateway/test_gateway_clients.py": ("clients",),
        "tests/spark_integration/test_gateway_requests.py": ("tables",),
    },
    "docs/going-back.md": {ROWS: ("retain",)},
    "docs/operators.md": {MANUAL: ()},
    "docs/sources-and-sinks.md": {
        MANUAL: (
            *(
                "directory",
                "formats",
                "entry_point",
                "iterator",
                "parquet",
                "partitioned",
                "partition_columns",
            ),
            "journaled",
            *("sql", "own_sink", "wrong_sink"),
        ),
        "tests/dataflow/test_s3_source.py": ("s3_source",),
        "tests/dataflow/test_sinks_on_another_host.py": ("s3",),
    },
    "docs/spark.md": {
        ON_SPARK: (
            "supervised",
            "write",
        ),
        "tests/spark_integration/test_source_on_spark.py": ("five_minutes", "columns", "stream", "consumer"),
        "tests/spark_integration/test_inside_on_spark.py": ("inside",),
        "tests/spark_integration/test_merged_on_spark.py": ("merged",),
        "tests/spark_integration/test_through.py": ("through",),
        "tests/spark_integration/test_frame.py": ("frame",),
    },
    "docs/watching.md": {"tests/dos_ui/test_page_and_top.py": ("page",)},
    "docs/state.md": {
        MANUAL: ("state_on_disk", "migration", "ttl", "spark_function", "spark_processor"),
        EDITED: ("bootstrap",),
    },
    "docs/testing.md": {
        "tests/dataflow/test_testing.py": ("trial", "crash"),
        "tests/dos_server/test_testing.py": ("trio", "threads", "fixture"),
    },
}
"""Page -> test file -> the names of the examples that it runs; () for all examples of the page."""


def commands(page: str) -> dict[str, list[str]]:
    """Return the lines of the marked blocks of commands of a page, by name."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return {name: block.splitlines() for name, block in COMMANDS.findall(text)}


def examples(page: str) -> dict[str, str]:
    """Return the marked examples of a page, by name."""
    return dict(MARKED.findall((ROOT / page).read_text(encoding="utf-8")))


def example(page: str, name: str, **replaced: str) -> str:
    """Return the text of one example. Each of `replaced` is a new value for a placeholder of
    `PLACEHOLDERS`.
    """
    text = examples(page)[name]
    for what, value in replaced.items():
        text = re.sub("|".join(map(re.escape, PLACEHOLDERS[what])), lambda _, value=value: value, text)
    return text


PLACEHOLDERS = {
    "store": ("dos://host1,host2,host3", "dos://h1,h2,h3", "dos://127.0.0.1"),
    "data": ("/data/",),
    "bucket": ("s3://backups/dos", "s3://sales/sold", "s3://sales/lines"),
    "port": ("9400",),
    "gateway": ("9870",),
    "entry": ("dos://e1,e2,e3",),
    "points": ("10.0.1.5:7777,10.0.2.5:7777,10.0.3.5:7777",),
}
"""What a page writes in place of the reader's own servers and folder."""


def run_example(page: str, name: str, names: dict[str, Any] | None = None, **replaced: str) -> dict[str, Any]:
    """Run one example and return its global names. It starts with `names`, which are updated."""
    names = {} if names is None else names
    names.setdefault("__name__", "example")
    exec(compile(example(page, name, **replaced), f"{page}, {name}", "exec"), names)
    return names
