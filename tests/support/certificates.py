"""Certificates for tests: a store's own, and such as are refused, each for its reason."""

import functools
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dos_tls import ServerContext, TlsSettings, directory_settings
from dos_tls.authority import Authority

HERE = "127.0.0.1"


class Certificates:
    """An authority with certificates for 127.0.0.1 and for clients, and a second authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.create(folder / "ours")
        self.server = self.authority.add_server([HERE, "localhost"])
        self.client = self.authority.add_client()

    @functools.cached_property
    def foreign(self) -> Authority:
        """Another authority."""
        return Authority.create(self.folder / "foreign")

    @functools.cached_property
    def foreign_server(self) -> Path:
        return self.foreign.add_server([HERE])

    @functools.cached_property
    def foreign_client(self) -> Path:
        return self.foreign.add_client()

    @functools.cached_property
    def expired(self) -> Authority:
        return self._with_dates("expired", datetime.now(UTC) - timedelta(days=9))

    @functools.cached_property
    def future(self) -> Authority:
        return self._with_dates("future", datetime.now(UTC) + timedelta(days=9))

    def _with_dates(self, name: str, begins: datetime) -> Authority:
        """A copy of the authority, with certificates that are valid for one day from then on."""
        folder = self.folder / name
        folder.mkdir()
        for file in ("ca.pem", "ca.key"):
            (folder / file).write_bytes((self.authority.directory / file).read_bytes())
        copy = Authority(folder)
        copy.add_server([HERE], days=1, begins=begins)
        copy.add_client(days=1, begins=begins)
        return copy

    @property
    def client_settings(self) -> TlsSettings:
        return directory_settings(str(self.client))

    def context(self, directory: Path | None = None, *, client_certificates: bool = False) -> ServerContext:
        """The context of a server; by default with its own certificate."""
        settings = directory_settings(str(directory or self.server))
        return ServerContext(settings, client_certificates=client_certificates)

    def reloaded(self, directory: Path | None = None, *, client_certificates: bool = False) -> ServerContext:
        """The same of a server that began with other files: those of a foreign authority."""
        files = Path(tempfile.mkdtemp(dir=self.folder))
        shutil.copytree(self.foreign_server, files, dirs_exist_ok=True)
        context = self.context(files, client_certificates=client_certificates)
        shutil.copytree(directory or self.server, files, dirs_exist_ok=True)
        return context


@pytest.fixture(scope="module")
def certificates() -> Iterator[Certificates]:
    with tempfile.TemporaryDirectory() as folder:
        yield Certificates(Path(folder))
