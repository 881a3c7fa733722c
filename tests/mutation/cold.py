"""A pytest plugin that installs one mutant of code that runs at import, before the module is imported."""

import os

from tests.mutation.mutants import MutantFinder, source_of

module, _, wanted = os.environ["DOS_MUTANT"].partition(" ")
source = source_of(module)
mutant = next(one for one in source.mutants if one.id == wanted)
MutantFinder(module, source.compiled(mutant)).install()
