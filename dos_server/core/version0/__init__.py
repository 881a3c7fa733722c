"""Version 0: the protocol of the original service, on the same port and over the same objects.

`wire` frames its bytes, `requests` parses its requests, `states` defines what is legal when, `service`
carries out requests. The rest of the core knows version 0 only by `Session.version` and by the lock of a
stream on its object.
"""
