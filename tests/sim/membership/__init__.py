"""Runs in which the servers of the store change: members are replaced, added, lost and repaired while writers
work.

All decisions are made by the real code of `dos_client` with its shells: the functions that `dos store
replace`, `add`, `repair` and `recover` call, and clients that find the store's record on their own
(`store/shells`). Its parts:

    kind       which seeds have such a run
    jobs       the commands of a person, and the operators that run them: each one run of one command
    cluster    the cluster of such a run: spare servers, what may be damaged now, the person
"""
