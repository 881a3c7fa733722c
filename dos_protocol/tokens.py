"""Reading the token from a file, by one rule for servers and clients.

A file without a token is an error, never "no token", because an empty token admits every client. The caller
reads the file and reports the error.
"""

from typing import Final

from dos_protocol.errors import LocalProtocolError

TOKEN_BYTES_MAX: Final = 4_096
_STRONG_BYTES_MIN: Final = 16
_DISTINCT_MIN: Final = 8


def token_in(data: bytes, where: str) -> bytes:
    """Return the first line of a token file, without surrounding white space.

    Raises LocalProtocolError if that line is missing, blank or longer than 4,096 bytes.
    """
    token = data.split(b"\n", 1)[0].strip()
    if not token:
        seen = "an empty file" if not data else "a blank first line"
        raise LocalProtocolError(
            f"token file {where} contains no token, found {seen}",
            remedy="write the token into its first line, or omit the option to use none",
        )
    if len(token) > TOKEN_BYTES_MAX:
        raise LocalProtocolError(
            f"token file {where}: a token has at most {TOKEN_BYTES_MAX} bytes, its line has {len(token)}"
        )
    return token


def refuse_weak(secret: bytes, where: str) -> None:
    """Raise LocalProtocolError for a secret that can be guessed: the delay of wrong ones is no protection."""
    if len(secret) < _STRONG_BYTES_MIN or len(set(secret)) < _DISTINCT_MIN:
        raise LocalProtocolError(
            f"the secret in {where} can be guessed: it has {len(secret)} characters, {len(set(secret))} of"
            f" them distinct; at least {_STRONG_BYTES_MIN} and {_DISTINCT_MIN} are needed",
            remedy=f"make a random one: head --bytes 24 /dev/urandom | base64 > {where}",
        )
