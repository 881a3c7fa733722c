"""What a fake and the real thing must both do: the same tests on both, so that what is tried on the fake is
true of the real one.

    test_disk       a disk: real, in memory (also as the simulators have it), and the lossy file system of
                    tests/power; test_memory_disk and test_real_disk are what one of them alone does
    test_streams    the two ends of a connection, without blocking and in trio: TCP of loopback, and in memory
    test_work       who does work on the disk, and who says what is ready: threads and epoll, and in memory
"""
