"""A request over HTTP, for the ports with figures and health."""

import urllib.error
import urllib.request


def fetch_url(url: str, timeout_s: float = 60.0) -> tuple[int, str]:
    """The status and the text of an answer, also of one that reports an error."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
