"""The object server: `dos serve`.

`core` is pure and decides every order of events. Around it, `disk` and `storage` handle files, `connection`
and `server` use trio, and `embedded` and `cli` start it. Only `dos_cli`, tests and the default store of a
local Spark session import this package.
"""
