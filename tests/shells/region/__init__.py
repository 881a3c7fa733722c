"""A region in the second tier: the shells of its coordinator and its workers, in trio, beside a store of real
servers.

Real are the coordinator's shell with its links, manifest, requests and answers; the participant; a worker's
links, lives, exchange, journals and output logs; the circuit with its operators. In memory are connections,
threads and files of outputs; the rows of the input; the launcher. A worker's two threads are two tasks.

    surroundings  what `checkpoint.runtime` asks for
    driver        the process of a coordinator
    worker        the process of a worker
    region        what there is to do, and who starts a driver again
    output        the output of the region, in files and in logs
    users         who looks at outputs, and who asks through the store
    audit         who looks at the journals when all is over
    phases        a run with a region
    nemesis       faults of a region
    oracles       what must be true of its processes

Input, launcher, record of promises and the judgement of cuts are the first tier's (`tests.sim.regions`).
"""
