"""Executable specifications of the formats, written with `construct` from protocol.md.

They share no table with the product's codecs, and property tests compare the two. They are slow, and serve
tests and authors of clients in other languages.
"""
