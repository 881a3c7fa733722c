"""The options of the formats that look inside: each that is wrong is named, before a store is opened."""

import pytest

from dos_client.errors import BadUrlError
from spark_integration.core.options import parse_checkpoints, parse_journal, parse_state
from spark_integration.errors import BadOptionError

PARSERS = {"journal": parse_journal, "checkpoints": parse_checkpoints, "state": parse_state}


def test_options_that_are_wrong_are_named() -> None:
    def refused(error: type[Exception], text: str, kind: str, path: str, **options: str) -> None:
        with pytest.raises(error, match=text):
            PARSERS[kind]({"path": path, **{name.rstrip("_"): value for name, value in options.items()}})

    state = "dos://h/words"
    refused(
        BadOptionError,
        r"the source dos-state has no option 'operater'; did you mean 'operator'\?",
        "state",
        state,
        operater="x",
    )
    refused(
        BadOptionError,
        "the source dos-checkpoints has no option 'output'",
        "checkpoints",
        state,
        output="x",
    )
    refused(
        BadOptionError,
        r"the source dos-journal has no option 'form'; did you mean 'from'\?",
        "journal",
        state,
        form="1",
    )
    refused(BadOptionError, "the option 'operator' is required", "state", state)
    refused(
        BadOptionError,
        "option 'checkpoint' must be a whole number from 1, not 'last'",
        "state",
        state,
        operator="c",
        checkpoint="last",
    )
    refused(
        BadOptionError,
        r"option 'since' \(3\) must be before",
        "state",
        state,
        operator="c",
        checkpoint="3",
        since="3",
    )
    refused(BadOptionError, "at most 1024", "state", state, operator="c", tasksPerWorker="5000")
    refused(BadOptionError, "names an object", "checkpoints", "dos://h/words/x")
    refused(BadOptionError, "names a store but nothing in it", "checkpoints", "dos://h")
    refused(BadOptionError, "names a directory but no journal", "journal", state)
    refused(BadOptionError, "must be a logical offset", "journal", f"{state}/c", from_="step:3")
    refused(BadOptionError, "is after option 'to'", "journal", f"{state}/c", from_="9", to="3")
    refused(BadUrlError, "words", "checkpoints", "words")
