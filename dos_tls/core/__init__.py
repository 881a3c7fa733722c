"""Decisions about TLS: which files an end uses, what a failure means, and what is logged. Pure."""
