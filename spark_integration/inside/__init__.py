"""The formats that look inside a store: `dos-journal` (records), `dos-checkpoints` (what a region committed) and
`dos-state` (what its operators keep).

Rules of this room: `sources` has Spark's classes; each format is a `InsideTable` (`table`) in a file of its own.
They read with the code of `dos journal` and `dos checkpoint`, and show the same names. The driver finds out what
there is and fixes it; tasks read what was fixed, so that a task that is tried again gives the same rows.
"""
