"""Entry points over an entry store: they give rows their times, record them for all sites, and mark them.

`core/entry.py` of `checkpoint` has the rules, `core/entry_messages.py` the messages. `serving.py` is an entry
point, `sending.py` the side of those that connect to it.
"""
