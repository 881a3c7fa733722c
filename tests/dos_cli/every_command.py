"""Runs every command of `dos` in a process of its own, forked from one that has imported them all and what
the first call of a command imports: quick enough to try each of them with each kind of trouble.

As a program it prints a line of JSON for each run. With the address of a server that accepts connections and
says nothing, it prints what each command shows on a terminal that it has for its standard error.
"""

import contextlib
import gc
import json
import os
import pty
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from dos_cli.__main__ import main
from dos_cli.main import COMMANDS, load_command
from tests.support.dos_command import dos

URLS = ("dos://127.0.0.1:1/../a", "dos://127.0.0.1:1/n/\u00e9", "dos://")


def commands() -> Iterator[tuple[list[str], Any]]:
    """(words, command) of every command of the tree."""
    for name in COMMANDS:
        yield from _below([name], load_command(name))


def _below(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _below([*words, name], inner)


def with_url(words: list[str], command: Any, url: str) -> list[str] | None:
    """A call with this URL, and something for all else that must be given; None: it takes no URL."""
    given, takes_url = list(words), False
    for parameter in command.params:
        if not parameter.required:
            continue
        text = f"{parameter.metavar or ''} {parameter.name}".upper()
        value = "1"
        if "URL" in text:
            value, takes_url = url, True
        given += [value] if parameter.param_type_name == "argument" else [parameter.opts[0], value]
    return given if takes_url else None


def run(words: Sequence[str], trouble: str) -> dict[str, Any]:
    """One command with standard streams in trouble: its exit code and what it printed on standard error."""
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            _be(words, trouble, errors.fileno())
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        text = errors.read().decode()
    return {
        "words": list(words),
        "trouble": trouble,
        "code": os.waitstatus_to_exitcode(status),
        "stderr": text,
    }


def _be(words: Sequence[str], trouble: str, errors: int) -> None:
    os.dup2(errors, 2)
    sys.argv = ["dos", *words]
    if trouble == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif trouble == "closed":
        for number, name in ((0, "stdin"), (1, "stdout")):
            os.close(number)
            setattr(sys, name, None)  # as the interpreter has it when it begins so
    elif trouble == "pipe":
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, 1)
    else:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    code: object = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def shown_on_terminals(calls: Sequence[list[str]], wanted: str, within_s: float) -> list[dict[str, Any]]:
    """All these commands at the same time, each until it shows the wanted text, has ended, or takes too long:
    what the terminal showed until then.
    """
    ours, shown, children = dict[int, list[str]](), list[dict[str, Any]](), dict[int, int]()
    for words in calls:
        child, terminal = pty.fork()
        if child == 0:
            _be(words, "none", 2)
        ours[terminal], children[terminal] = words, child
    texts = dict.fromkeys(ours, "")
    deadline = time.monotonic() + within_s
    while ours:
        ready, _, _ = select.select(list(ours), [], [], max(0.0, deadline - time.monotonic()))
        for terminal in ready or list(ours):
            with contextlib.suppress(OSError):  # the end of the output of a terminal
                if ready and (data := os.read(terminal, 65_536)):
                    texts[terminal] += data.decode("utf-8", "replace")
                    if wanted not in texts[terminal]:
                        continue
            os.kill(children[terminal], signal.SIGKILL)
            os.waitpid(children[terminal], 0)
            os.close(terminal)
            shown.append({"words": ours.pop(terminal), "text": texts[terminal]})
    return shown


def main_program() -> None:
    every = list(commands())
    for call in (["ls", "--help"], ["ls", URLS[0]]):
        dos(*call)  # imports what prints help, and what reads arguments
    gc.freeze()  # a collection in a child would copy every page
    if sys.argv[1:]:
        url, wanted, within_s = sys.argv[1:]
        calls = [
            call
            for words, command in every
            for place in (url, f"{url}/a/b")
            if getattr(command.callback, "shows_progress", False)
            and (call := with_url(words, command, place)) is not None
        ]
        print(json.dumps(shown_on_terminals(calls, wanted, float(within_s))), flush=True)
        return
    for words, command in every:
        # what begins and ends a command is the same code for all of a group
        for trouble in ("full", "closed", "pipe") if len(words) == 1 else ():
            print(json.dumps(run([*words, "--help"], trouble)), flush=True)
        for url in URLS:
            call = with_url(words, command, url)
            if call is not None:
                print(json.dumps(run(call, "none")), flush=True)


if __name__ == "__main__":
    main_program()
