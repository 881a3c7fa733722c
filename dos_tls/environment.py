"""The TLS settings of this process, from its environment variables."""

import os

from dos_tls.core.settings import VARIABLES, TlsSettings, settings_of


def tls_of_environment() -> TlsSettings | None:
    """Return the settings that connections of this process use; None: plain text. Raises TlsSettingsError.

    Paths in the result are absolute, so that it means the same in another directory.
    """
    if not any(name in os.environ for name in VARIABLES):
        return None
    found = settings_of(os.environ)
    assert found is not None, "one of the variables is set"
    return TlsSettings(*(path and os.path.abspath(path) for path in _fields(found)))  # noqa: PTH100 - pure text


def adopt(settings: TlsSettings | None) -> None:
    """Use the settings of another process, unless the environment of this one has its own.

    For processes that Spark starts. They get the paths, and not the contents, of the driver's files. With
    None nothing changes, so a process with settings of its own never changes to plain text.
    """
    if settings is not None and not any(name in os.environ for name in VARIABLES):
        os.environ.update(settings.as_variables())


def _fields(settings: TlsSettings) -> tuple[str, str, str]:
    return settings.authorities, settings.certificate, settings.key
