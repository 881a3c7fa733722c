"""Mutation testing: edit the source in one place, run the tests nearby, and see whether one of them fails.

`./run mutate --help`; docs/robustness.md has the scores, decisions/0196 why this driver is our own.

    operators    the edits: each is a node of a syntax tree and what replaces it
    mutants      their names, which do not depend on line numbers; samples; mutated code objects
    near         the packages: modules in scope, and the tests near to them
    coverage     which test executes which line, and how long it takes
    session      a pytest session that collects once, then forks a process for each mutant
    equivalents.toml   mutants that no test can kill, each with the reason
    kills.toml         mutants and, for each, a test that kills it: run again in CI
"""
