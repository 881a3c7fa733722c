"""The second tier of the simulator: the real shells, in trio, on virtual time, from one seed. See
docs/simulation.md.

Servers are `dos_server`'s, clients are `dos_client`'s, writers are the journal's: with their tasks, their
streams and their cancellations. Disks, connections and the work of threads are those of
`dos_server.memory`; the clock is trio's mock. Its rooms:

    trio_run   one trio run that is the same each time
    machines   a host with a disk that has a fate, and what it promised
    clients    writers, readers, who replaces a member, who takes no answers
    nemesis    the faults of a run, planned from the seed
    oracles    what must be true of the shells themselves: nothing left over, nothing without bound
    run        one seed, from topology to verdict
    campaign   many seeds on all cores
    bugs       planted bugs, to be found; hunt: how many seeds that takes

What was written, acknowledged and shown is kept in the first tier's `history`, which is also where most of
what must be true is said."""
