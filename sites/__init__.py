"""One application at several sites: replicas of its regions, so that the nearest results count.

After Hwang, Cetintemel, Zdonik, "Fast and Highly-Available Stream Processing over Wide Area Networks". A
*site* is a place with a store of its own that runs regions. A *replica* is a region that runs at one site.
Every replica of a region feeds every replica of the regions that read it, and a reader takes each row from
the replica that is first (`dataflow/core/duplicate_filter.py`).
"""
