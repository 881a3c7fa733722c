"""The simulator: a whole cluster in one process, on virtual time, from one seed. See docs/simulation.md.

The cores of the servers, the storage below them, the cores of the clients and the journal on top are the real
ones; disks, network, clocks and the order of things are models. Its rooms, from the bottom:

    chance     one seed, a stream of random numbers for each purpose
    trace      what happened, a line an event, and the digest of it all
    world      the event heap and virtual time; coroutines on it; processes that pause and die
    disk       a disk that keeps, loses, tears, flips and fills up
    network    connections between processes: late, cut, held back
    server     a machine and its server process: the core and the storage of `dos_server`
    session    a client's session with one server
    store      a directory looked at, without a claim
    member     what connects a claim with one member, and the copies there
    claim      a directory claimed on the members of a store: the cores of `dos_client`
    writer     a client that takes a chain over and appends to it; reader: one that looks
    history    what really happened, as the oracles see it
    oracles/   what must be true, one module each
    nemesis    the faults of a run, planned from the seed
    run        one seed, from topology to verdict
    shrink     a failing run with as few faults as possible
    campaign   many seeds on all cores
    bugs       planted bugs, to be found; hunt: how many seeds that takes
"""
