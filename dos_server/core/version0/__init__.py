"""Version 0: the protocol of the original service, on the same port and over the same objects.

`wire` its bytes, `requests` its words, `states` what is legal when, `service` what is done. The rest of the
core knows version 0 by `Session.version` and by the lock that a stream holds on its object, and by nothing
else.
"""
