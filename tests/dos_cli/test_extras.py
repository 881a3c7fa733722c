"""Commands and the libraries of extras: what prints help needs none, and what needs one names its extra."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dos_cli.main import COMMANDS
from dos_protocol.lazy_names import EXTRA_OF
from tests.test_architecture import MAY_IMPORT, ROOT, face_of, module_file, tree_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", one)[0].replace("-", "_") for one in requirements}


def imported_at_once(tree: ast.Module, package: list[str]) -> Iterator[tuple[str, list[str]]]:
    """(module, names taken from it) of every import that runs when the module is imported."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module, [alias.name for alias in node.names]
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting += ast.iter_child_nodes(node)


def executed_by(module: str, names: list[str]) -> Iterator[str]:
    """The modules that an import executes: its packages, itself, and those that define lazy names."""
    parts = module.split(".")
    yield from (".".join(parts[: count + 1]) for count in range(len(parts)))
    for name in names:
        lazy = face_of(module) if module in MAY_IMPORT else {}
        if name in lazy:
            yield from executed_by(lazy[name], [])
        elif module_file(f"{module}.{name}") is not None:
            yield f"{module}.{name}"


def test_what_prints_help_imports_no_library_of_an_extra() -> None:
    """From every module of `COMMANDS`, over all that it imports in turn."""
    core = names_of(PROJECT["dependencies"]) | set(sys.stdlib_module_names)
    start = ["dos_cli.main", *(module for module, _ in COMMANDS.values())]
    waiting, why = list(start), dict.fromkeys(start, "the table of commands")
    wrong = []
    while waiting:
        here = waiting.pop()
        path = module_file(here)
        assert path is not None, here
        package = here.split(".") if path.name == "__init__.py" else here.split(".")[:-1]
        for module, names in imported_at_once(tree_of(path), package):
            if module.split(".")[0] not in MAY_IMPORT:
                wrong += (
                    [f"{here} imports {module} ({why[here]})"] if module.split(".")[0] not in core else []
                )
                continue
            for one in executed_by(module, names):
                if one not in why:
                    why[one] = f"imported by {here}"
                    waiting.append(one)
    assert len(why) > 100
    assert not wrong, "import it in the function that needs it:\n" + "\n".join(wrong)


def test_the_extra_of_a_library_is_the_one_that_lists_it() -> None:
    extras = {name: names_of(listed) for name, listed in PROJECT["optional-dependencies"].items()}
    # come with another library, or under another name
    parts = {"botocore": "boto3", "py4j": "pyspark", "opentelemetry": "opentelemetry_sdk"}
    for module, extra in EXTRA_OF.items():
        assert parts.get(module, module) in extras[extra]


WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
"""The libraries of all extras are hidden, and every other module is the real one."""


def without_extras(program: str) -> "subprocess.CompletedProcess[str]":
    text = WITHOUT.format(absent=set(EXTRA_OF)) + program
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "library", "extra"),
    [
        (["input", "serve", "dos://h1", "shop", "lines"], "pyarrow", "dataflow"),
        (["input", "entries", "e1:7777", "shop", "loads"], "pyarrow", "dataflow"),
        (["output", "merged", "s=dos://p1", "--region", "r", "--sink", "out", "--schema", "n bigint"],
         "pyarrow", "dataflow"),
        (["journal", "verify", "s3://bucket/prefix/ledger/files"], "boto3", "s3"),
    ],
)  # fmt: skip
def test_a_command_that_needs_an_extra_names_it_when_it_runs(
    words: list[str], library: str, extra: str
) -> None:
    done = without_extras(f"sys.argv = ['dos', *{words!r}]\nfrom dos_cli.__main__ import main\nmain()")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.endswith(f"(pip install 'dos-journal[{extra}]')\n")
    assert f"needs the library {library}, which is not installed" in done.stderr


def test_a_name_that_needs_an_extra_names_it_when_it_is_used() -> None:
    done = without_extras("import dos\ntry:\n    dos.Graph\nexcept ImportError as error:\n    print(error)")
    assert done.stdout == (
        "dos.Graph needs the library pyarrow, which is not installed (pip install 'dos-journal[dataflow]')\n"
    ), done.stderr


def test_another_module_that_is_missing_is_a_bug_and_is_raised(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import typer\napp = typer.Typer()\n@app.command()\ndef ls() -> None:\n    import nowhere\n"
    )
    program = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nsys.argv = ['dos', 'ls']\n"
        "import dos_cli.main\ndos_cli.main.COMMANDS['ls'] = ('broken', '')\n"
        "from dos_cli.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'nowhere'" in done.stderr
