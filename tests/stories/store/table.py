"""The step forms of stories of a store: each form, its effect and its text.

One function for each form, named as its effect, with the blanks as arguments.
"""

from tests.sim.nemesis.rot import flip_one_bit
from tests.stories.store import commands, showing
from tests.stories.store.play import Play
from tests.stories.words import Vocabulary, WrongStepError

WORDS = Vocabulary()
FREE_BYTES = 1_000_000_000
OLD_PAUSE_S = 1.5
"""Status frames of version 0 come at most once a second."""


@WORDS.form(
    "servers {count}, quorum {quorum:number}",
    "a store of this many servers, of which a quorum must acknowledge",
)
def servers(play: Play, count: int, quorum: int) -> None:
    play.make_store(count, quorum)


# Writers


@WORDS.form(
    "writer {writer} takes over {directory} [one at a time]",
    "it claims the directory, finds the journal and opens a segment; "
    "one at a time: each record waits for the one before, as a manifest's do (R9)",
)
def takes_over(play: Play, writer: str, directory: str, one_at_a_time: bool) -> None:
    one = play.new_writer(writer)
    one.take_over(directory, one_at_a_time=one_at_a_time)
    play.until_idle(one)


@WORDS.form(
    "writers {writer} and {other:writer} take over {directory} at once",
    "both inspect the journal, then both claim",
)
def take_over_at_once(play: Play, writer: str, other: str, directory: str) -> None:
    both = [play.new_writer(writer), play.new_writer(other)]
    for one in both:
        one.take_over(directory, one_at_a_time=False)
    play.until_idle(*both)


@WORDS.form(
    "{writer} appends {count} record(s) [of {bytes} bytes] [without waiting]",
    "it waits for the quorum, or continues without waiting",
)
def appends(play: Play, writer: str, count: int, bytes: int | None, without_waiting: bool) -> None:  # noqa: A002
    one = play.writer(writer)
    one.append(count, bytes or 0)
    if without_waiting:
        play.pass_time()
    else:
        play.until_idle(one)


@WORDS.form(
    "before its start, {writer} is cut off from {servers}",
    "at its next take-over: between reading the journal and opening a segment",
)
def cut_off_before_start(play: Play, writer: str, servers: list[str]) -> None:
    one = play.new_writer(writer)
    one.before_start = lambda: play.block(writer, servers)


@WORDS.form("{writer} dies", "its process is killed; its messages in flight are lost")
def dies(play: Play, writer: str) -> None:
    one = play.writer(writer)
    play.network.process_died(one, power=False)
    one.kill()
    play.pass_time()


@WORDS.form(
    "{writer} sleeps", "its process is stopped, as on a suspended machine or during a long garbage collection"
)
def sleeps(play: Play, writer: str) -> None:
    play.writer(writer).pause()
    play.pass_time()


@WORDS.form("{writer} wakes up", "it continues where it was stopped")
def wakes_up(play: Play, writer: str) -> None:
    one = play.writer(writer)
    one.resume()
    play.until_idle(one)


# Paths


@WORDS.form(
    "cut {client} off from {servers}", "no message passes in either direction, and neither side is notified"
)
def cut_off(play: Play, client: str, servers: list[str]) -> None:
    play.block(client, servers)
    play.pass_time()


@WORDS.form("hold back what {servers} answer(s) {client}", "messages in the other direction still arrive")
def hold_back(play: Play, servers: list[str], client: str) -> None:
    for server in servers:
        play.machine(server)
        play.network.block((server, client))
    play.pass_time()


@WORDS.form("connect {client} with {servers}", "all messages pass again, those that were held back first")
def connect(play: Play, client: str, servers: list[str]) -> None:
    for server in servers:
        play.machine(server)
        play.network.unblock((client, server))
        play.network.unblock((server, client))
    play.pass_time()


@WORDS.form(
    "everything between {writer} and {servers} takes {count} times as long",
    "in both directions, until the end of the story",
)
def takes_longer(play: Play, writer: str, servers: list[str], count: int) -> None:
    for server in servers:
        play.machine(server)
        play.network.slow[writer, server] = play.network.slow[server, writer] = count


@WORDS.form("reset the connections of {writer}", "half of the bytes in flight in each direction are lost")
def reset(play: Play, writer: str) -> None:
    one = play.writer(writer)
    for wire in list(play.network.wires):
        if one in wire.processes:
            wire.reset()
    play.until_idle(one)


# Servers and disks


@WORDS.form("{server} is killed", "its process, not the machine: written bytes are still in the cache")
def is_killed(play: Play, server: str) -> None:
    play.running(server).kill()
    play.pass_time()


@WORDS.form("cut the power of {server}", "unsynced bytes are lost, or half of them")
def cut_the_power(play: Play, server: str) -> None:
    play.running(server).power_cut()
    play.pass_time()


@WORDS.form("{server} starts", "with the content of its disk")
def starts(play: Play, server: str) -> None:
    machine = play.machine(server)
    if machine.up:
        raise WrongStepError(f"{server} is running")
    machine.start()
    play.pass_time()


@WORDS.form("wipe {server}", "its disk is replaced by an empty one; the server has to be down")
def wipe(play: Play, server: str) -> None:
    machine = play.down(server)
    machine.lose_disk(machine.rng.randbytes(16))
    play.pass_time()


@WORDS.form(
    "flip a bit of {object} on {server}", "in the middle of the file, on the disk; the server has to be down"
)
def flip_a_bit(play: Play, object: str, server: str) -> None:  # noqa: A002
    machine = play.down(server)
    path = play.path_of(machine, object)
    machine.disk.damage(path, lambda data: flip_one_bit(data, machine.rng))
    machine.damaged[path] = None
    play.pass_time()


@WORDS.form(
    "a sync takes {seconds} s on {servers}",
    "from the next sync on; for disks that are slow, or hang for a while",
)
def sync_takes(play: Play, seconds: float, servers: list[str]) -> None:
    for server in servers:
        machine = play.machine(server)
        machine.slowness = seconds / machine.speed.sync_s
    play.pass_time()


@WORDS.form("the disk of {server} is full", "to the last byte")
def is_full(play: Play, server: str) -> None:
    play.machine(server).disk.fill(0)
    play.pass_time()


@WORDS.form("the disk of {server} has room again", "a person deleted other files")
def has_room(play: Play, server: str) -> None:
    play.machine(server).disk.fill(FREE_BYTES)
    play.pass_time()


# A person


@WORDS.form("a new server {server} starts", "with an empty disk; it belongs to no store")
def new_server(play: Play, server: str) -> None:
    if server in play.machines:
        raise WrongStepError(f"there is a server {server} already")
    play.new_machine(server).start()
    play.pass_time()


@WORDS.form("dos store replace {old:server} {server}", "a person replaces the first by the second")
def replace(play: Play, old: str, server: str) -> None:
    play.machine(old)
    play.running(server)
    commands.replace(play, old, server)


@WORDS.form("dos store repair", "a person runs the command: every copy is read, and repaired if necessary")
def repair(play: Play) -> None:
    commands.repair(play)


# A client of the original service


@WORDS.form("an old client connects to {server}", "it speaks version 0 of the protocol")
def old_client_connects(play: Play, server: str) -> None:
    play.connect_old(server)
    play.pass_time()


@WORDS.form("the old client asks {text}", "a request of version 0: u DIR, a FILE OFFSET, g FILE 0 0, l")
def old_client_asks(play: Play, text: str) -> None:
    play.old_client().ask(text)
    play.pass_time()


@WORDS.form("the old client sends {text}", "content, after an `a` that was answered ok")
def old_client_sends(play: Play, text: str) -> None:
    play.old_client().stream(text)
    play.pass_time(seconds=OLD_PAUSE_S)


@WORDS.form("the old client shuts down its side", "it sends no more")
def old_client_shuts_down(play: Play) -> None:
    play.old_client().shut_down()
    play.pass_time()


# Looking


@WORDS.form("the reader looks at {directory}", "without a claim: it sees what is committed (R10)")
def looks(play: Play, directory: str) -> None:
    showing.read(play, directory)


@WORDS.form("show {directory}", "print what each server reports to hold; this changes nothing")
def show(play: Play, directory: str) -> None:
    showing.show(play, directory)


@WORDS.form("{seconds} s pass", "time passes, without a new step")
def time_passes(play: Play, seconds: float) -> None:
    play.pass_time(seconds=seconds)
