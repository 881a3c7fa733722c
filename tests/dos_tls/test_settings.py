"""What environment variables mean, what failures of OpenSSL mean, and how often they are logged."""

from pathlib import Path

import pytest

from dos_tls import (
    CertificateAuthorityError,
    CertificateExpiredError,
    CertificateNameError,
    CertificateNotYetValidError,
    CertificateRejectedError,
    CertificateRequiredError,
    LogLimit,
    TlsBusyError,
    TlsError,
    TlsHandshakeError,
    TlsSettings,
    TlsSettingsError,
    settings_of,
    tls_of_environment,
)
from dos_tls.core.settings import WORKER_NAME, failure_of

OWN = TlsSettings("/t/ca.pem", "/t/cert.pem", "/t/key.pem")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"DOS_TLS": "/t"}, OWN),
        ({"DOS_TLS": "/t/"}, OWN),
        ({"DOS_TLS_CA": "/c"}, TlsSettings("/c")),
        ({"DOS_TLS_CA": "/c", "DOS_TLS_CERT": "/d", "DOS_TLS_KEY": "/k"}, TlsSettings("/c", "/d", "/k")),
        ({"DOS_TLS": "/t", "DOS_TLS_CA": "/c"}, TlsSettings("/c", "/t/cert.pem", "/t/key.pem")),
        ({"DOS_TLS": "/t", "DOS_TLS_CERT": "/d", "DOS_TLS_KEY": "/k"}, TlsSettings("/t/ca.pem", "/d", "/k")),
    ],
)
def test_variables_name_the_files(variables: dict[str, str], expected: TlsSettings | None) -> None:
    assert settings_of(variables) == expected
    if expected is not None:
        assert settings_of(expected.as_variables()) == expected


@pytest.mark.parametrize(
    "variables",
    [
        {"DOS_TLS": ""},
        {"DOS_TLS_CA": ""},
        {"DOS_TLS_CERT": "/d", "DOS_TLS_KEY": "/k"},
        {"DOS_TLS_CA": "/c", "DOS_TLS_CERT": "/d"},
        {"DOS_TLS_CA": "/c", "DOS_TLS_KEY": "/k"},
        {"DOS_TLS": "/t", "DOS_TLS_KEY": "/k"},
    ],
)
def test_incomplete_variables_are_an_error_and_never_plain_text(variables: dict[str, str]) -> None:
    with pytest.raises(TlsSettingsError) as refused:
        settings_of(variables)
    assert refused.value.remedy


def test_relative_paths_mean_the_same_in_another_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOS_TLS", "../certificates")
    expected = str(tmp_path.parent / "certificates" / "ca.pem")
    found = tls_of_environment()
    assert found is not None
    assert found.authorities == expected


FAILED = "CERTIFICATE_VERIFY_FAILED"


@pytest.mark.parametrize(
    ("reason", "code", "server_side", "error"),
    [
        (FAILED, 10, False, CertificateExpiredError),
        (FAILED, 10, True, CertificateExpiredError),
        (FAILED, 9, False, CertificateNotYetValidError),
        (FAILED, 62, False, CertificateNameError),
        (FAILED, 64, False, CertificateNameError),
        *((FAILED, code, code == 18, CertificateAuthorityError) for code in (2, 7, 18, 19, 20, 21)),
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", 0, True, CertificateRequiredError),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", 0, False, CertificateRequiredError),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", 0, False, CertificateRequiredError),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", 0, True, TlsHandshakeError),
        ("TLSV1_ALERT_UNKNOWN_CA", 0, True, CertificateRejectedError),
        *(
            (f"SSLV3_ALERT_{what}", 0, what == "CERTIFICATE_EXPIRED", CertificateRejectedError)
            for what in (
                "CERTIFICATE_EXPIRED",
                "BAD_CERTIFICATE",
                "CERTIFICATE_UNKNOWN",
                "CERTIFICATE_REVOKED",
                "UNSUPPORTED_CERTIFICATE",
            )
        ),
        ("TLSV1_ALERT_INTERNAL_ERROR", 0, False, TlsBusyError),
        ("", 0, False, TlsHandshakeError),
    ],
)
def test_each_failure_has_its_name_and_a_remedy(
    reason: str, code: int, server_side: bool, error: type[TlsError]
) -> None:
    found = failure_of("h:1", reason, code, "text of OpenSSL", server_side=server_side, name="h")
    assert type(found) is error
    assert "h:1" in str(found)
    assert found.remedy
    # the words of OpenSSL are shown only if ours do not say what is wrong
    assert ("text of OpenSSL" in str(found)) == (error is TlsHandshakeError or code == 7)


def test_a_worker_whose_peer_has_another_name_is_told_which_directory_it_must_use() -> None:
    for name in (WORKER_NAME, "h"):
        error = failure_of("h:1", FAILED, 62, "", server_side=False, name=name)
        assert ("the client directory there" in error.remedy) == (name == WORKER_NAME)


def test_a_flood_of_one_kind_is_one_line_and_a_count() -> None:
    limit = LogLimit(pause_s=10)
    assert limit.text("a", "first", 0.0) == "first"
    assert limit.text("a", "second", 1.0) is None
    assert limit.text("a", "third", 9.9) is None
    assert limit.text("b", "other", 9.9) == "other"
    assert limit.text("a", "fourth", 10.0) == "fourth (and 2 more like it before)"
    assert limit.text("a", "fifth", 20.0) == "fifth"
