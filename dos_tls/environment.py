"""The TLS settings of this process, from its environment variables."""

import os

from dos_tls.core.settings import TlsSettings, settings_of


def tls_of_environment() -> TlsSettings | None:
    """Return the settings that connections of this process use; None: plain text. Raises TlsSettingsError.

    Paths in the result are absolute, so that it means the same in another directory.
    """
    found = settings_of(os.environ)
    return None if found is None else found.with_absolute_paths(os.getcwd())  # noqa: PTH109 - text
