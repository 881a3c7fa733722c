"""Read a store: as a reader, which gets what is committed, and as the narrator, which sees everything.

It sends ordinary requests and changes nothing.
"""

from dos_protocol.errors import BrokenConnectionError, DosError
from journal import inspect_chain
from tests.sim.engine.environment import Process
from tests.sim.store.clients import CHAIN
from tests.sim.store.session import Session
from tests.stories.store.copies import in_words, listed, words_of
from tests.stories.store.machine import StoryMachine
from tests.stories.store.play import READER, Play
from tests.stories.store.writer import names_of

_ANSWER_S = 10.0


def read(play: Play, directory: str) -> None:
    """What the reader is shown."""

    async def look() -> None:
        store = play.new_store(play.reader)
        try:
            state = await inspect_chain(store, directory, CHAIN)
            names = await names_of(store, state, directory)
        except DosError as error:
            play.tell(f"{READER} is shown nothing: {words_of(error)}")
            return
        finally:
            store.close()
        if state.end is None:
            play.tell(f"{READER} is shown that nothing is committed")
        else:
            play.tell(f"{READER} is shown {listed(names)}, up to {state.end}")

    looking = play.reader.start("look", look())
    play.pass_time(lambda: looking.done, _ANSWER_S)


def show(play: Play, directory: str) -> None:
    """What each server says, those that say the same together."""
    narrator = Process(play.env, "narrator")
    said: dict[str, str] = {}
    for name, machine in play.machines.items():
        if machine.up:
            narrator.start("ask", _ask(play, narrator, machine, directory, said))
        else:
            said[name] = "down"
    play.pass_time(lambda: len(said) == len(play.machines), _ANSWER_S)
    narrator.kill()
    together: dict[str, list[str]] = {}
    for name in play.machines:
        together.setdefault(said.get(name, "no answer"), []).append(name)
    for what, names in together.items():
        play.tell(f"{in_words(names)}: {what}")


async def _ask(
    play: Play, narrator: Process, machine: StoryMachine, directory: str, said: dict[str, str]
) -> None:
    session = Session(narrator, play.network, machine.address)
    try:
        await session.open()
        opened = await session.open_directory(directory)
    except DosError as error:
        said[machine.name] = words_of(error)
        return
    finally:
        session.fail(BrokenConnectionError("asked"))
    held = play.book.told({info.name: info for info in opened.entries})
    said[machine.name] = f"claimed by epoch {opened.epoch}; {held}" if opened.epoch else f"no claim; {held}"
