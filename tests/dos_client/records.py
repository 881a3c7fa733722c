"""Store records for tests: members are letters, their identities sixteen of that letter."""

from dos_protocol.store_record import Member, MemberState, StoreRecord

STORE = b"S" * 16


def server_id(letter: str) -> bytes:
    return letter.encode() * 16


def member(letter: str, state: MemberState = "in") -> Member:
    return Member(server_id(letter), f"{letter}:1", state)


def record(
    letters: str, quorum: int, generation: int = 1, *, joining: str = "", after: str = ""
) -> StoreRecord:
    """A record of members "in"; `joining` stands after `after`, whose place it takes."""
    members: list[Member] = []
    for letter in letters:
        members.append(member(letter))
        if letter == after:
            members.append(member(joining, "joining"))
    return StoreRecord(STORE, generation, quorum, tuple(members))
