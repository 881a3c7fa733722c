"""Decisions about what a process shows: addresses of figures, choices of a log, spans. Pure."""
