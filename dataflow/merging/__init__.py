"""Several replicas of one output, read at several sites and merged: each row once, from the first that has
it.
"""
