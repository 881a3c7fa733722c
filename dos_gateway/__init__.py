"""Gateways: a tree of files in one directory of a store, served by WebHDFS, the protocol of Hadoop's client.

Spark's bundled client speaks it, so a streaming query in any language can have its `checkpointLocation` in a
store, without a jar. Requires the extra `ui` (httptools).

    core        paths, the tree, its records, space, who may answer; pure
    serving     the tree under one claim: requests, appends, space
    gateway     who serves: watches the chain, takes over
    webhdfs     the requests
    gateway_cli `dos gateway`
"""
