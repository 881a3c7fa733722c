"""Where the `dos` command begins, and `python -m dos_cli`: before anything is imported that takes time.

How every command ends when it does not end by itself is decided here, once: interrupted (exit code 130), with
an output that nobody takes (`standard_streams`), or with an error that its own code did not expect from a URL
or a store (2). None of these shows a traceback.
"""

import sys

from dos_cli import standard_streams

REFUSED = 2
INTERRUPTED = 130


def main() -> None:
    """Run the command; exits."""
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
    """Whether it is a DosError; whoever raised one has imported the module."""
    errors = sys.modules.get("dos_protocol.errors")
    return errors is not None and isinstance(error, errors.DosError)


def _end_of(group: BaseExceptionGroup[BaseException]) -> None:
    """End as the one kind of exception in the group says; a mixture is a bug to be seen."""
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
