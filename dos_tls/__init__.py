"""TLS for every connection: settings, contexts, streams, named errors, and a private authority.

The standard library's `ssl` does all cryptography. Nothing here runs unless TLS is asked for.

    core         which files an end uses, what a failure means; pure
    contexts     the settings as contexts of `ssl`, read again when a file changes; when they expire
    streams      TLS over bytes in memory, and over a socket of trio
    readiness    sockets in rounds, also without TLS: one task serves all that are ready
    sockets      TLS as a socket that does not block, for rounds
    files        files on stable storage, also without TLS; warns of secrets that everyone can read
    authority    `dos tls`: makes an authority and its certificates
"""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from dos_tls.contexts import ServerContext as ServerContext
    from dos_tls.contexts import client_context as client_context
    from dos_tls.contexts import expiries as expiries
    from dos_tls.contexts import expiry_problem as expiry_problem
    from dos_tls.contexts import tls_of_environment as tls_of_environment
    from dos_tls.core.settings import AUTHORITIES as AUTHORITIES
    from dos_tls.core.settings import BUSY_ALERT as BUSY_ALERT
    from dos_tls.core.settings import CERTIFICATE as CERTIFICATE
    from dos_tls.core.settings import DIRECTORY as DIRECTORY
    from dos_tls.core.settings import KEY as KEY
    from dos_tls.core.settings import VARIABLES as VARIABLES
    from dos_tls.core.settings import WORKER_NAME as WORKER_NAME
    from dos_tls.core.settings import CertificateAuthorityError as CertificateAuthorityError
    from dos_tls.core.settings import CertificateExpiredError as CertificateExpiredError
    from dos_tls.core.settings import CertificateNameError as CertificateNameError
    from dos_tls.core.settings import CertificateNotYetValidError as CertificateNotYetValidError
    from dos_tls.core.settings import CertificateRejectedError as CertificateRejectedError
    from dos_tls.core.settings import CertificateRequiredError as CertificateRequiredError
    from dos_tls.core.settings import LogLimit as LogLimit
    from dos_tls.core.settings import PlainTextPeerError as PlainTextPeerError
    from dos_tls.core.settings import TlsBusyError as TlsBusyError
    from dos_tls.core.settings import TlsError as TlsError
    from dos_tls.core.settings import TlsHandshakeError as TlsHandshakeError
    from dos_tls.core.settings import TlsSettings as TlsSettings
    from dos_tls.core.settings import TlsSettingsError as TlsSettingsError
    from dos_tls.core.settings import TlsTruncatedError as TlsTruncatedError
    from dos_tls.core.settings import directory_settings as directory_settings
    from dos_tls.core.settings import settings_of as settings_of
    from dos_tls.files import make_durable_folders as make_durable_folders
    from dos_tls.files import raise_file_limit as raise_file_limit
    from dos_tls.files import replace_durably as replace_durably
    from dos_tls.files import sync_folder as sync_folder
    from dos_tls.files import warn_if_open as warn_if_open
    from dos_tls.streams import TlsEngine as TlsEngine
    from dos_tls.streams import TlsListener as TlsListener
    from dos_tls.streams import TlsStream as TlsStream
    from dos_tls.streams import connect_tls as connect_tls
else:
    __getattr__, __dir__, __all__ = lazy_names(globals())
