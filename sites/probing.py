"""Measure the network from one site to the stores of the others, every `PROBE_S`.

The time to open a TCP connection is one round trip: the server's kernel answers, whatever the server does.
"""

import time
from contextlib import suppress
from typing import Final

import trio

from dos_client.urls import parse_url, split_address
from sites.core.description import Description
from sites.core.measuring import LinkMeter

PROBE_S: Final = 10.0
_WAIT_S_MAX: Final = 5.0


async def probe_links(description: Description, site: str, meter: LinkMeter) -> None:
    """Measure until cancelled. A site that does not answer gives no sample."""
    stores = {one.name: one.store for one in description.sites if one.store and one.name != site}
    addresses = {name: parse_url(url).servers for name, url in stores.items()}

    async def probe(other: str) -> None:
        # The servers of a site are near each other: the nearest answer has waited least for anything else.
        found = [one for one in [await round_trip_s(address) for address in addresses[other]] if one]
        if found:
            meter.add(other, trio.current_time(), min(found) / 2)

    while True:
        async with trio.open_nursery() as nursery:
            for other in addresses:
                nursery.start_soon(probe, other)
        await trio.sleep(PROBE_S)


async def round_trip_s(address: str) -> float | None:
    """Return the round trip to a server, None if it does not answer."""
    with suppress(OSError), trio.move_on_after(_WAIT_S_MAX):
        found = await trio.socket.getaddrinfo(*split_address(address), type=trio.socket.SOCK_STREAM)
        family, kind, protocol, _, place = found[0]
        with trio.socket.socket(family, kind, protocol) as connection:
            begun = time.perf_counter()
            await connection.connect(place)
            return time.perf_counter() - begun
    return None
