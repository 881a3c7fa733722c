"""Regions of sites on this machine have the workers that regions of `dataflow` have in tests."""

from tests.dataflow.conftest import forks

__all__ = ["forks"]
