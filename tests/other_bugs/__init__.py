"""Bugs that users of other systems reported, tried on this one: docs/other-bugs.md has them all."""
