"""A region in the second tier: the shells of its coordinator and its workers, in trio, with a store of real
servers.

Real are the coordinator's shell with its links, manifest and request queue; the participant; a worker's
links, incarnations, exchange, journals and output logs; the circuit with its operators. In memory are
connections, threads and files of outputs; the rows of the input; the launcher. A worker's two threads are two
tasks.

    surroundings  the runtime that `checkpoint.runtime` provides
    driver        the process of a coordinator
    worker        the process of a worker
    region        the task of the region, and the restart of drivers
    output        the output of the region, in files and in logs
    users         clients that read output logs, and that send requests through the store
    audit         reads the journals at the end
    phases        a run with a region
    nemesis       faults of a region
    oracles       what must be true of its processes

Input, launcher, record and checks of checkpoints are the first tier's (`tests.sim.regions`).
"""
