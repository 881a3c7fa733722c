"""`dos get`: write an object's committed bytes. Which bytes are committed is decided by `Store`."""

import base64
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final

import trio
import typer

from dos_client.cli.kit import (
    REFUSED,
    AsJson,
    TokenFile,
    Url,
    fail,
    opened,
    parsed_url,
    print_json,
    read_token,
    run,
)
from dos_client.cli.progress import ProgressDisplay
from dos_client.live_store import Store
from dos_client.urls import DosUrl
from dos_protocol.limits import payload_bytes_max

_PROGRESS_AFTER_S: Final = 2.0
"""A read that takes less time shows no progress."""


def get(
    url: Url,
    offset: Annotated[int, typer.Option(min=0, help="Offset of the first byte.")] = 0,
    max_bytes: Annotated[int | None, typer.Option("--max", min=0, help="Maximum number of bytes.")] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Continue as the object grows, until interrupted. It need not exist yet.",
        ),
    ] = False,
    any_member: Annotated[
        bool,
        typer.Option(
            "--any-member", help="Read what one member holds durably, committed or not. Only for inspection."
        ),
    ] = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Write an object's committed bytes to standard output: the bytes that a quorum of the store holds,
    verified by digest. Committed bytes are never taken back. From one server alone, write its durable bytes.

    --json prints lines with offset, bytes (the number of bytes) and data (base64).

    Example: dos get dos://127.0.0.1/app.w0000/greetings --offset 100 --max 20

    Example: dos get dos://127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003/app.w0000/greetings --follow
    """
    parsed = parsed_url(url, needs="object")
    if follow and any_member:
        fail("--follow reads committed bytes only; leave out --any-member", REFUSED)

    async def work() -> None:
        async with opened(parsed, read_token(token_file)) as store:
            end = None if max_bytes is None else offset + max_bytes
            pieces = _pieces(store, parsed, offset, end, follow, any_member)
            quiet = follow or as_json or sys.stdout.isatty()
            with ProgressDisplay(quiet=quiet, after_s=_PROGRESS_AFTER_S) as progress:
                async with aclosing(pieces):
                    async for at, data in pieces:
                        await trio.to_thread.run_sync(_write_json if as_json else _write, at, data)
                        progress.show("read", at + len(data) - offset)

    run(work)


def _write(_: int, data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _write_json(at: int, data: bytes) -> None:
    print_json({"offset": at, "bytes": len(data), "data": base64.b64encode(data).decode()})


async def _pieces(
    store: Store, url: DosUrl, offset: int, end: int | None, follow: bool, any_member: bool
) -> AsyncGenerator[tuple[int, bytes]]:
    assert url.directory is not None
    assert url.object is not None
    position = (url.directory, url.object, offset)
    if any_member:
        stream = _stream_any_member(store, *position, end)
    elif follow:
        stream = store.follow(*position)
    else:
        stream = store.stream(*position, end)
    async with aclosing(stream):
        while end is None or offset < end:
            data = await anext(stream, b"")
            if not data:
                return
            data = data if end is None else data[: end - offset]
            yield offset, data
            offset += len(data)


async def _stream_any_member(
    store: Store, directory: str, name: str, offset: int, end: int | None
) -> AsyncGenerator[bytes]:
    while data := await store.read(
        directory, name, offset, payload_bytes_max if end is None else min(payload_bytes_max, end - offset)
    ):
        yield data
        offset += len(data)
