"""Whole regions on the simulated store: a driver with its coordinator, workers, links between them, a
launcher.

Real are the cores of coordinator, participant, barrier, handshake and frames, the manifest over its chain
(`ManifestLog`), the worker's circuit with its schedule, operators, state blocks and file sink
(`CircuitLoop`), and the chains under them (`Journals`). Written anew, and shorter, are the tasks around
them:

    channel    one end of a link, proved
    claiming   claims of the region's directories, and where the manifest runs
    input      the rows of a run, and the source that reads them
    output     files of the sinks, on disks that lose what was not synced
    driver     the coordinator's process
    worker     a worker's process; life: one incarnation of it
    region     drivers, workers, the launcher, who starts a driver again
    record     what was promised on the way: votes, orders, commits; a contradiction is a violation at once
"""
