"""A pytest plugin for one mutant that changes what a module does when it is imported: see `session`."""

import os

from tests.mutation.mutants import MutantFinder, source_of

module, _, wanted = os.environ["DOS_MUTANT"].partition(" ")
source = source_of(module)
mutant = next(one for one in source.mutants if one.id == wanted)
MutantFinder(module, source.compiled(mutant)).install()
