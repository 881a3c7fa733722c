"""What the driver of a region shows: an HTTP port and a log of JSON; and what its workers show.

A port that cannot be used is no reason to refuse a region: it runs without one, and logs a warning.
"""

import logging
import os
import time
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry

from checkpoint import RegionEvent, RegionState, span_of
from checkpoint.coordinator.control import RegionControl
from checkpoint.coordinator.figures import RegionFigures
from checkpoint.runtime import runtime
from dos_client import metrics
from dos_monitoring import (
    LOG_VARIABLE,
    METRICS_VARIABLE,
    HealthServer,
    begin_logs,
    log_choice_of_environment,
    parse_metrics_listen,
    serve_health,
    tracer_of_environment,
)
from dos_tls import TlsSettingsError

logger: Final = logging.getLogger("dos.dataflow")


class Monitoring(NamedTuple):
    """What the driver and the workers of an application show, in the words of its user."""

    metrics: str = ""
    """Where figures are served: `parse_metrics_listen`."""
    log: str = ""
    """How the log is written: `parse_log_choice`."""


def monitoring_of(metrics: str | None) -> Monitoring:
    """Return what was asked for; `metrics` None: as DOS_METRICS. Begins the driver's log if DOS_LOG asks for
    one and the program has none. Raises ValueError, MissingExtraError; OSError for a file of spans.
    """
    given = os.environ.get(METRICS_VARIABLE, "") if metrics is None else metrics
    parse_metrics_listen(given)
    tracer_of_environment()
    choice = log_choice_of_environment()
    if choice is not None:
        begin_logs(choice)
    return Monitoring(given, os.environ.get(LOG_VARIABLE, ""))


class RegionMonitor:
    """The HTTP port of one region in its driver, and its figures. Without an address there is no port."""

    def __init__(self, region: str, listen: str) -> None:
        """listen: `Monitoring.metrics`. Raises as `tracer_of_environment`."""
        self.address = ""
        self._tracer = tracer_of_environment()
        self._region = region
        self._figures = RegionFigures(region)
        self._control: RegionControl | None = None
        self._server: HealthServer | None = None
        self._shares: metrics.SharedFigures | None = None
        if (place := parse_metrics_listen(listen)) is None:
            return
        registry, shares = CollectorRegistry(), metrics.SharedFigures()
        registry.register(self._figures)
        registry.register(shares)
        try:
            self._server = serve_health(place, registry, hangs=self._hangs, not_ready=self._not_ready)
        except (OSError, TlsSettingsError) as error:
            shares.close()
            logger.warning("region %s: its driver serves no figures at %s: %s", region, listen, error)
        else:
            self._shares = shares
            self.address = place.reached_at(self._server.port, runtime().host_name())

    def observe(self, event: RegionEvent) -> None:
        """Count an event, and emit its trace. On the coordinator's thread."""
        self._figures.observe(event, time.time())
        if self._tracer is not None and (span := span_of(self._region, event)) is not None:
            self._tracer.emit(span)

    def watch(self, control: RegionControl) -> None:
        """Show this region from now on."""
        self._control, self._figures.status = control, control.status

    def close(self) -> None:
        """Close the port. Without effect the second time."""
        server, shares, self._server, self._shares = self._server, self._shares, None, None
        if server is not None and shares is not None:
            server.close()
            shares.close()

    def _hangs(self) -> str:
        return "" if self._control is None else self._control.hangs()

    def _not_ready(self) -> str:
        if self._control is None:
            return "STARTING"
        status = self._control.status()
        if status.state is RegionState.RUNNING:
            return status.access_problem
        return f"{status.state.value}: {status.reason}" if status.reason else status.state.value
