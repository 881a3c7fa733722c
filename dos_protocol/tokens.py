"""The token in a file: one rule for servers and clients. It fails closed: a file without a token is an error,
never "no token", because an empty token admits everybody.

Rules of this file: bytes to a token. Who reads the file, and how the error ends the program, is the caller's.
"""

from typing import Final

from dos_protocol.errors import LocalProtocolError

TOKEN_BYTES_MAX: Final = 4_096


def token_in(data: bytes, where: str) -> bytes:
    """Return the first line of a token file, without the white space around it.

    Raises LocalProtocolError if that line is missing, blank or longer than 4,096 bytes.
    """
    token = data.split(b"\n", 1)[0].strip()
    if not token:
        seen = "an empty file" if not data else "a blank first line"
        raise LocalProtocolError(
            f"token file {where} holds no token, it has {seen}",
            remedy="write the token into its first line, or leave the option out to use none",
        )
    if len(token) > TOKEN_BYTES_MAX:
        raise LocalProtocolError(
            f"token file {where}: a token has at most {TOKEN_BYTES_MAX} bytes, its first line {len(token)}"
        )
    return token
