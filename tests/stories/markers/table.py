"""The step forms of stories of markers: each form, its effect and its text.

One function for each form, named as its effect, with the blanks as arguments.
"""

from tests.stories.markers.play import Play
from tests.stories.words import Vocabulary

WORDS = Vocabulary()


@WORDS.form("circuits of {count} workers", "they count words; each word belongs to one worker by its hash")
def circuits(play: Play, count: int) -> None:
    play.make(count)


@WORDS.form("worker {number} is given {text}", "words that it reads in its next step")
def given(play: Play, number: int, text: str) -> None:
    play.give(number, text.split())
    play.settle()


@WORDS.form(
    "hold back what worker {number} sends worker {other:number}",
    "the rows and markers are in flight, and do not arrive",
)
def hold_back(play: Play, number: int, other: int) -> None:
    play.hold((number, other))


@WORDS.form(
    "what worker {number} sent worker {other:number} arrives",
    "in the order in which it was sent, including frames of earlier incarnations",
)
def arrives(play: Play, number: int, other: int) -> None:
    play.release((number, other))
    play.settle()


@WORDS.form("all are asked for checkpoint {checkpoint:number}", "as a coordinator would")
def ask_all(play: Play, checkpoint: int) -> None:
    play.ask([*range(play.workers.workers)], checkpoint)
    play.settle()


@WORDS.form(
    "worker {number} alone is asked for checkpoint {checkpoint:number}",
    "the others have not received the request yet",
)
def ask_one(play: Play, number: int, checkpoint: int) -> None:
    play.ask([number], checkpoint)
    play.settle()


@WORDS.form("all are asked to pause", "they read no more input")
def pause(play: Play) -> None:
    play.pause(1)
    play.settle()


@WORDS.form("all may go on", "after a pause")
def resume(play: Play) -> None:
    play.pause(0)
    play.settle()


@WORDS.form("everything is reset", "to the last committed checkpoint, in a new incarnation")
def reset(play: Play) -> None:
    play.reset()
    play.settle()
