"""The second tier of the simulator: the real shells, in trio, on virtual time, from one seed. See
docs/simulation.md.

Servers are `dos_server`'s, clients are `dos_client`'s, writers are the journal's: with their tasks, their
streams and their cancellations. Disks, connections and the work of threads are those of
`dos_server.memory`; the clock is trio's mock. Its parts:

    trio_run   a deterministic trio run
    machines   a host whose disk can fail, and the sizes that it reported
    clients    writers, readers, clients that replace a member, repair, or read no answers
    nemesis    the faults of a run, planned from the seed
    oracles    what must be true of the shells themselves: no leftovers, no unlimited queues
    run        one seed, from topology to verdict
    region/    regions with their real shells
    bugs       planted bugs; `tests.sim.hunt --shells` counts the seeds that it takes to find them

What was written, acknowledged and read is recorded in the first tier's `history`; its oracles check most of
it."""
