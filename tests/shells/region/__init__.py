"""A region in the second tier: the shells of its coordinator and its workers, in trio, with a store of real
servers.

Real are the coordinator's shell with its links, manifest and request queue; the participant; a worker's
links, incarnations, exchange, journals and output logs; the circuit with its operators. In memory are
connections, threads and files of outputs; the rows of the input; the launcher. A worker's two threads are two
tasks.

    process    the runtime that `checkpoint.runtime` provides, the process of a coordinator, and what must be
               true of processes
    worker     the process of a worker
    region     the task of the region, its output, users and audit, and the restart of drivers
    phases     a run with a region
    nemesis    faults of a region

Input, launcher, record and checks of checkpoints are the first tier's (`tests.sim.regions`).
"""
