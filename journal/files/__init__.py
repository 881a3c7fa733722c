"""Journaled files: a directory whose changes are recorded in a journal, and that can be restored from it."""
