"""`dos chaos`: faults on real servers and their disks, and a check that nothing acknowledged is lost.

    core        the records of the workload, the checker, the plan of the faults, the figures and the report
    servers     `dos serve` as processes
    workload    writers: take a chain over, append, log which records were acknowledged
    harvest     readers: everything that is compared at the end
    places      the user's directories: checks, marker, space, speed of the disks
    local       the cluster in these directories, and the faults
    visited     a store of the user: refused unless empty; own directories are deleted at the end
    story       one run, from the first record to the verdict
    cli         the command

The tests of `tests/chaos` use the workload and the checker with harder faults, among them those of networks.
"""
