"""Whole regions on the simulated store: a driver with its coordinator, workers, links between them, a
launcher.

The real parts are the cores of coordinator, participant, barrier, handshake and frames, the manifest with its
chain (`ManifestLog`), the worker's circuit with its schedule, operators, state blocks and file sink
(`CircuitLoop`), and the chains below them (`Journals`). The tasks around them are shorter implementations:

    links      one end of a link with its handshake, and the links of an exchange
    claiming   claims of the region's directories, and the host of the manifest
    input      the rows of a run, and the source that reads them
    output     files of the sinks, on disks that lose what was not synced
    driver     the coordinator's process, with the launcher
    worker     a worker's process and its incarnations
    users      what persons do: savepoints, forks, edits, backups, trims, damage
    region     drivers, workers, the launcher, and the restart of drivers
    record     votes, orders and commits during the run; a contradiction is a violation at once
"""
