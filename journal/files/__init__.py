"""Journaled files: a directory whose changes are recorded in a journal, and that can be restored from it.

directory             change files through a journal
restoring, history    restore the files as of a moment
rebuilding, tree      write the files to the disk
"""
