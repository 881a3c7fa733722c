"""The environment of a server in memory: a disk, connections, and disk work without threads.

    disk     files that track what is synced and lose the rest in a power cut
    network  hosts, their listeners, the connections and paths between them, and network faults
    host     a machine with them, and the interfaces of `dos_server.ports`

Nothing here starts a thread or makes a system call, and every random choice comes from a generator that is
passed in: on trio's mock clock every run is the same. `dos_server.testing` is the public interface for
programs that need a server in their tests; `tests/shells` runs whole clusters on these modules;
`tests/contract` checks that they behave like the real disk and real sockets.
"""
