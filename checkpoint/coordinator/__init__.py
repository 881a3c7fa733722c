"""Running a region: the coordinator's thread, its manifest, its listeners. Decisions are in
`checkpoint.core`.
"""
