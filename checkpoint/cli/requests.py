"""What the commands that ask a region for something have in common: their options, and the last word.

Rules of this file: text or JSON of an answer, and the exit code it makes.
"""

from typing import Annotated, Any

import typer

from checkpoint.cli.support import NEGATIVE
from checkpoint.core.request_records import Answer
from checkpoint.requests.client import Reply
from dos_client.cli.support import fail, print_json

Timeout = Annotated[
    float, typer.Option(min=0.1, max=86_400, help="Seconds to wait for a first answer.", metavar="SECONDS")
]
Wait = Annotated[
    float,
    typer.Option(
        min=0.1, max=604_800, help="Seconds to wait for the end of what was accepted.", metavar="SECONDS"
    ),
]
Incarnation = Annotated[
    int,
    typer.Option(
        min=0,
        help="Refuse unless this incarnation is running, as `status` shows it; 0: any.",
        metavar="NUMBER",
    ),
]


def accepted(as_json: bool) -> Any:
    """What tells, on standard error, that a request is being carried out."""

    def tell(answer: Answer) -> None:
        if not as_json:
            typer.echo(f"accepted by {answer.driver}: {answer.reason}", err=True)

    return tell


def end(reply: Reply, as_json: bool, text: Any) -> None:
    """The last word, and the end of the command if that is no."""
    answer = reply.answer
    if as_json:
        print_json(_answer_json(answer) | {"supersededBy": reply.superseded_by or None})
    elif answer.verdict == "done":
        print(text(answer.result))
        if reply.superseded_by:
            print(f"since then the manifest was claimed with epoch {reply.superseded_by}")
    if answer.verdict != "done":
        fail(f"{answer.verdict} by {answer.driver}: {answer.reason}", NEGATIVE)


def _answer_json(answer: Answer) -> dict[str, Any]:
    return {
        "name": answer.region,
        "verdict": answer.verdict,
        "reason": answer.reason,
        "driver": answer.driver,
        "incarnation": answer.incarnation,
        "timeMs": answer.wall_time_ms,
        "result": answer.result,
    }
