"""The web page of a driver: that of `dos ui`, in a thread of the process that runs a region."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from checkpoint import RegionSpec
from dos_client import parse_url
from dos_protocol.arguments import is_loopback, parse_listen

if TYPE_CHECKING:
    from dos_ui.serving import PageServer


def serve_page(
    spec: RegionSpec, reports: Mapping[str, Callable[[], dict[str, Any]]], listen: str
) -> "PageServer":
    """Serve the page of the store of `spec`, with the reports of these regions; `RegionHandle.serve_page` has
    the errors.
    """
    from dos_ui.serving import PageServer  # needs the extra [ui]

    host, port = parse_listen(listen, "listen")
    if not is_loopback(host):
        raise ValueError(
            f"{host} can be reached from other machines, and this page has no TLS: serve it on 127.0.0.1, or"
            " run `dos ui --tls`"
        )
    return PageServer(parse_url(spec.store_url).servers, host, port, spec.token, dict(reports))
