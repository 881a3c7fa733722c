"""Sources: where rows enter a region, by splits that can be read again."""

from dataflow.sources.files import FileSource

__all__ = ["FileSource"]
