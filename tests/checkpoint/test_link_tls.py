"""Links over TLS: both ends demand a certificate, and an end that speaks plain text is named."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from checkpoint.core.links.frames import ChannelFrame, FrameType
from checkpoint.core.links.handshake import LinkHello
from checkpoint.errors import HandshakeError
from checkpoint.link import Link, connect_link, serve_links
from dos_protocol.errors import DosError
from dos_tls import CertificateNameError, CertificateRejectedError, PlainTextPeerError
from tests.support.certificates import Certificates, certificates

__all__ = ["certificates"]
KEY = b"k" * 32
HELLO = LinkHello(role="control", job="app", worker=1, attempt=1)


@contextmanager
def using(directory: Path | None, **more: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DOS_TLS", "DOS_TLS_CA"):
            patch.delenv(name, raising=False)
        if directory is not None:
            patch.setenv("DOS_TLS", str(directory))
        for name, value in more.items():
            patch.setenv(name, value)
        yield


async def echo(link: Link) -> None:
    while True:
        try:
            await link.send(await link.receive())
        except DosError:
            return


def linked(acceptor: Path | None, dialler: Path | None, **more: str) -> bytes:
    """Open a link between ends with these certificates, and send a payload there and back."""

    async def dial(address: tuple[str, int]) -> bytes:
        with using(dialler, **more):
            link = await connect_link(*address, key=KEY, hello=HELLO)
        assert link.silent_s < 30
        keeps = link._stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert keeps, "the kernel notices a host that is gone"
        await link.send(ChannelFrame(FrameType.DATA, payload=bytes(300_000) + b"end"))
        with trio.fail_after(30):
            answer = bytes((await link.receive()).payload)
        await link.aclose()
        return answer

    async def work() -> bytes | DosError:
        result: bytes | DosError
        async with trio.open_nursery() as nursery:
            with using(acceptor):
                address = await nursery.start(partial(serve_links, echo, job="app", key=KEY))
            try:
                result = await dial(address)
            except DosError as error:
                result = error
            await trio.testing.wait_all_tasks_blocked()  # it logs
            nursery.cancel_scope.cancel()
        return result

    result = trio.run(work)
    if isinstance(result, DosError):
        raise result
    return result


def test_frames_pass_between_ends_with_certificates_of_one_authority(certificates: Certificates) -> None:
    assert linked(certificates.client, certificates.client) == bytes(300_000) + b"end"


def test_a_holder_of_the_certificate_of_a_server_cannot_pose_as_a_worker(certificates: Certificates) -> None:
    with pytest.raises(CertificateNameError, match=r"worker\.dos\.internal"):
        linked(certificates.server, certificates.client)


def test_a_dialler_of_another_authority_is_refused(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CertificateRejectedError):
        linked(
            certificates.client, certificates.foreign_client, DOS_TLS_CA=str(certificates.client / "ca.pem")
        )
    assert "authority that is not trusted here" in caplog.text


def test_a_dialler_without_tls_is_refused_with_the_reason(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(HandshakeError, match=r"uses TLS and the other does not.*DOS_TLS"):
        linked(certificates.client, None)
    assert "sends plain text" in caplog.text


def test_a_dialler_with_tls_never_falls_back(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(PlainTextPeerError):
        linked(None, certificates.client)
    assert "refused a link of region app" in caplog.text
