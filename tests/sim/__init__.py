"""The simulator: a whole cluster in one process, on virtual time, from one seed. See docs/simulation.md.

The cores of the servers, the storage below them, the cores of the clients and the journal on top are the real
ones; disks, network, clocks and the order of events are models. Its parts, from the bottom:

    engine/    a stream of random numbers for each purpose from one seed, the trace, the event heap with
               virtual time, disks that lose, tear and fill up, connections
    store/     machines with their server processes, clients' sessions, claims, writers and readers
    regions/   whole regions on that store: drivers, workers, their checkpoints and outputs
    history    what happened, as the oracles see it
    oracles/   what must be true
    nemesis/   the faults of a run, planned from the seed
    run        one seed, from topology to verdict
    sometimes  the events that must happen in many runs, taken from the project's own tables
    campaign   many seeds on all cores, their summary, the smallest failing runs and their records
    regressions  seeds that found a fault once
    bugs/      planted bugs; hunt: how many seeds it takes to find them
"""
