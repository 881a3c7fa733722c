"""Sources: where rows enter a region, from splits that can be replayed."""

from dataflow.sources.directory import DirectorySource
from dataflow.sources.files import FileSource
from dataflow.sources.log import LogSource
from dataflow.sources.stored import InputSource

__all__ = ["DirectorySource", "FileSource", "InputSource", "LogSource"]
