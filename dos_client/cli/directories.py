"""`dos store ls`: every directory of a store, and who claimed it."""

from dataclasses import asdict, dataclass

from dos_client.cli.kit import AsJson, StoreUrl, TokenFile, count_text, in_store, print_json, print_table
from dos_client.live_store import Store
from dos_client.tasks import read_each


@dataclass(frozen=True, slots=True)
class DirectoryRow:
    """One directory. objects, bytes: of the longest undamaged copies. epoch: of the newest claim, 0 if it was
    never claimed. damaged: copies that a server reports as damaged.
    """

    directory: str
    objects: int
    bytes: int
    epoch: int
    damaged: int


def ls(url: StoreUrl, as_json: AsJson = False, token_file: TokenFile = None) -> None:
    """List every directory of a store: its objects and bytes, the epoch of its newest claim, damaged copies.

    `dos ls` lists the objects of one directory; `dos region ls` and `dos input ls` list what the directories
    belong to.

    Example: dos store ls dos://h1,h2,h3

    Exit codes: 0 listed, also if there is none; 2 usage; 3 the store cannot be reached.
    """
    rows = in_store(url, token_file, directory_sizes)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    if not rows:
        print("the store has no directory")
        return
    cells = [
        (row.directory, row.objects, count_text(row.bytes), row.epoch or None, row.damaged or None)
        for row in rows
    ]
    print_table(("directory", "#objects", "#bytes", "#epoch", "#damaged"), cells)


async def directory_sizes(store: Store) -> list[DirectoryRow]:
    """Return a row for each directory of a store, by name. Raises QuorumUnavailableError."""

    async def read(name: str) -> DirectoryRow:
        view = await store.inspect(name)
        longest, damaged = dict[str, int](), 0
        for objects in view.answers.values():
            for info in objects.values():
                damaged += info.corrupt
                longest[info.name] = max(longest.get(info.name, 0), 0 if info.corrupt else info.synced)
        return DirectoryRow(name, len(longest), sum(longest.values()), view.epoch_seen, damaged)

    return [*(await read_each(await store.list_directories(), read)).values()]
