"""A server's surroundings in memory: a disk, connections, and work on the disk without threads.

    disk       files that know what is synced, and lose the rest when the power goes
    timers     what is to happen after a while, of trio's clock
    network    hosts, who listens there, paths between them and what can go wrong with them
    pipes      one end of a connection, with the words of a socket
    streams    the same with the words of trio's streams and listeners
    ports      what `dos_server.ports` wants, on these

Nothing here starts a thread or touches the kernel, and every choice is made by a stream of random numbers
that is handed in: on trio's mock clock a run is the same each time. `dos_server.testing` is the face for
programs that want a server for their tests; `tests/shells` runs whole clusters on these; `tests/contract`
holds them to what the real disk and real sockets do.
"""
