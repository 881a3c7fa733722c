"""Sinks: where rows leave a region."""

from dataflow.sinks.files import FileSink

__all__ = ["FileSink"]
