"""The object server.

`core` is pure and decides every order; around it `disk` and `storage` know files, `connection` and `server`
know trio, `embedded` and `cli` start it. Nobody imports this package but `dos_cli`, tests, and the embedded
default.
"""
