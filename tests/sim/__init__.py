"""The simulator: a whole cluster in one process, on virtual time, from one seed. See docs/simulation.md.

The cores of the servers, the storage below them, the cores of the clients and the journal on top are the real
ones; disks, network, clocks and the order of things are models. Its rooms, from the bottom:

    engine/    one seed and a stream of random numbers for each purpose, what happened, the event heap and
               virtual time, disks that lose, tear and fill up, connections
    store/     machines with their server processes, clients' sessions, claims, writers and readers
    regions/   whole regions on that store: drivers, workers, their cuts and outputs
    history    what really happened, as the oracles see it
    oracles/   what must be true, one module each
    nemesis/   the faults of a run, planned from the seed
    run        one seed, from topology to verdict
    shrink     a failing run with as few faults as possible
    sometimes  what many runs must have seen, taken from the project's own tables
    campaign   many seeds on all cores; summary: what it came to; keeping: what is kept of a failing run
    regressions  seeds that found something once
    bugs/      planted bugs, to be found; hunt: how many seeds that takes
"""
