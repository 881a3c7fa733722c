"""What a process shows of itself: figures and health over HTTP, a log for programs, spans of a trace.

Every process may use it: servers, clients, the workers and the driver of a region. It knows none of them.

    core         where figures are served, how logs are written, what a span is; pure
    health       the HTTP port: /metrics, /healthz, /readyz; whether an event loop moves
    logs         lines of text, or of JSON
    tracing      spans for OpenTelemetry
"""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from dos_monitoring.core.settings import LOG_VARIABLE as LOG_VARIABLE
    from dos_monitoring.core.settings import METRICS_VARIABLE as METRICS_VARIABLE
    from dos_monitoring.core.settings import Attribute as Attribute
    from dos_monitoring.core.settings import LogChoice as LogChoice
    from dos_monitoring.core.settings import MetricsListen as MetricsListen
    from dos_monitoring.core.settings import SpanRecord as SpanRecord
    from dos_monitoring.core.settings import in_sequence as in_sequence
    from dos_monitoring.core.settings import parse_log_choice as parse_log_choice
    from dos_monitoring.core.settings import parse_metrics_listen as parse_metrics_listen
    from dos_monitoring.health import HealthServer as HealthServer
    from dos_monitoring.health import SilentLoopError as SilentLoopError
    from dos_monitoring.health import answer_of_loop as answer_of_loop
    from dos_monitoring.health import refuse_plain_text as refuse_plain_text
    from dos_monitoring.health import serve_health as serve_health
    from dos_monitoring.health import silence_of as silence_of
    from dos_monitoring.logs import adopting_log_fields as adopting_log_fields
    from dos_monitoring.logs import begin_logs as begin_logs
    from dos_monitoring.logs import log_choice_of_environment as log_choice_of_environment
    from dos_monitoring.logs import log_fields as log_fields
    from dos_monitoring.tracing import Tracer as Tracer
    from dos_monitoring.tracing import appends_traced as appends_traced
    from dos_monitoring.tracing import tracer_of_environment as tracer_of_environment
else:
    __getattr__, __dir__, __all__ = lazy_names(globals())
