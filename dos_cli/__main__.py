"""Entry point of the `dos` command and of `python -m dos_cli`. Imports nothing slow at the top.

This file ends a command that did not handle its own end, without a traceback:

| cause | exit code |
|---|---|
| an interrupt | 130 |
| standard output cannot be written (`standard_streams`) | 0 if its reader has ended, otherwise 2 |
| a DosError that the command did not catch | 2 |

Any other exception is a bug and is raised.
"""

import sys

from dos_cli import standard_streams

REFUSED = 2
INTERRUPTED = 130


def main() -> None:
    """Run the command and exit with its code."""
    standard_streams.prepare()
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BaseExceptionGroup as group:
        _end_of(group)


def _run() -> None:
    from dos_cli.main import main as run

    try:
        run()
    except Exception as error:
        if not _is_ours(error):
            raise
        print(f"dos: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    finally:
        sys.stdout.flush()


def _is_ours(error: Exception) -> bool:
    """Return whether it is a DosError.

    The module of DosError is not imported for this: it is loaded if such an error was raised.
    """
    errors = sys.modules.get("dos_protocol.errors")
    return errors is not None and isinstance(error, errors.DosError)


def _end_of(group: BaseExceptionGroup[BaseException]) -> None:
    """Exit if the group holds only interrupts or only exits. Raise a mixed group: it must not hide a bug."""
    for kind in (KeyboardInterrupt, SystemExit):
        found, others = group.split(kind)
        if found is not None and others is None:
            first: BaseException = found
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            sys.exit(first.code if isinstance(first, SystemExit) else INTERRUPTED)
    raise group


if __name__ == "__main__":
    main()
