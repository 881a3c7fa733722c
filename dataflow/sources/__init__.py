"""Sources: where rows enter a region, from splits that can be replayed."""

from dataflow.sources.directory import DirectorySource
from dataflow.sources.files import FileSource
from dataflow.sources.inputs import InputSource
from dataflow.sources.log import LogSource

__all__ = ["DirectorySource", "FileSource", "InputSource", "LogSource"]
