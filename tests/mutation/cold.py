"""A pytest plugin that installs one mutant of code that runs at import, before the module is imported, and
runs the named tests in their order. A name that the mutant has changed (a parameter is part of it) is left
out: a test that is not found has not failed.
"""

import os

import pytest

from tests.mutation.mutants import MutantFinder, source_of

module, _, wanted = os.environ["DOS_MUTANT"].partition(" ")
source = source_of(module)
mutant = next(one for one in source.mutants if one.id == wanted)
MutantFinder(module, source.compiled(mutant)).install()
tests = os.environ["DOS_MUTANT_TESTS"].split("\n") if "DOS_MUTANT_TESTS" in os.environ else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if tests:
        found = {item.nodeid: item for item in items}
        items[:] = [found[name] for name in tests if name in found]
