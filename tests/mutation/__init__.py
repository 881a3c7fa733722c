"""Mutation testing: change the source in one place, run the near tests, and check whether one of them fails.

`./run mutate --help` lists the options. docs/robustness.md has the scores. Decision 0196 explains why the
project has a driver of its own.

    operators    the edits: each replaces a node of a syntax tree
    mutants      their names, which do not depend on line numbers; samples; mutated code objects
    near         the packages: modules in scope, and the tests near them
    coverage     which test executes which line, and how long each test takes
    reach        `./run near`: the tests that execute a file or a line
    session      a pytest session that collects once, then forks a process for each mutant
    equivalents.toml   mutants that no test can kill, each with the reason
    kills.toml         mutants, each with a test that kills it; CI repeats them
"""
