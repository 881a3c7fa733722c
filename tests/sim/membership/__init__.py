"""Runs in which the servers of the store change: members are replaced, added, lost and repaired while writers
work.

Everything that decides here is `dos_client`'s own, shells and all: what `dos store replace`, `add`,
`repair` and `recover` call, and clients that find the store's record by themselves (`store/shells`). Its
parts:

    kind       which seeds have such a run
    jobs       what a person wants done, and the operators that try it: each one run of one command
    cluster    the cluster of such a run: spare servers, what may be damaged now, the person
"""
