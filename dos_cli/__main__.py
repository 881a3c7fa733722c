"""Where the `dos` command begins, and `python -m dos_cli`: before anything is imported that takes time.

Rules of this file: an interrupt is an end like any other, from here on: exit code 130, no traceback.
"""

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command; exits."""
    try:
        from dos_cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is not None:
            raise
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
