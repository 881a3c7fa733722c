"""The `dos` command as a whole: every command of the table is there, and listing them imports none."""

import os
import subprocess
import sys

import pytest

from dos_cli.main import COMMANDS, load_command


def dos(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dos_cli", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", **environment},
    )


def test_help_lists_every_command_with_its_line() -> None:
    shown = dos("--help")
    assert shown.returncode == 0
    for name, (_, line) in COMMANDS.items():
        assert f" {name} " in shown.stdout
        assert line in shown.stdout


def test_the_version_is_that_of_the_installed_distribution() -> None:
    shown = dos("--version")
    assert shown.returncode == 0
    assert shown.stdout.startswith("dos 0.")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_listing_imports_no_package_of_a_command(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        f"sys.argv = ['dos', *{arguments!r}]\n"
        "from dos_cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'trio', 'dos_server', 'dos_client', 'journal', 'msgspec', 'pyarrow', 'pyspark'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_of_the_table_exists_and_explains_itself_with_an_example(name: str) -> None:
    assert load_command(name) is not None
    shown = dos(name, "--help")
    assert shown.returncode == 0, shown.stderr
    assert f"dos {name}" in shown.stdout


def test_an_unknown_command_is_refused_by_name() -> None:
    refused = dos("sreve")
    assert refused.returncode == 2
    assert "No such command 'sreve'. Did you mean 'serve'" in refused.stderr
    assert refused.stdout == ""


def test_completion_knows_the_commands_without_importing_them() -> None:
    shown = dos(_DOS_COMPLETE="complete_bash", COMP_WORDS="dos s", COMP_CWORD="1")
    assert shown.stdout.split() == ["serve", "store", "stat", "sites", "support-bundle"]


def test_a_completion_script_can_be_shown() -> None:
    shown = dos(_DOS_COMPLETE="source_bash")
    assert "complete -o default -F _dos_completion dos" in shown.stdout
