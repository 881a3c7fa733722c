"""A region that runs for a very long virtual time: `./run sim --soak N`. See docs/simulation.md.

    run      the run: its parts, its disturbances, its samples, its verdict
    region   the region, its driver that answers requests, its workers
    users    who uses it from outside: a producer, a reader of its output, a person with commands
    quiet    parts of the simulator that keep nothing: history, trace, sizes, files
    store    the store as the code of the product for trio expects it
    bugs     planted growth

Everything that the product keeps must stay flat: what is on the platters, what is open, what is in memory,
and what a restart costs. Exactness is checked elsewhere, by runs that are short enough for the oracles to
keep the whole history; here only the final output is compared.
"""
