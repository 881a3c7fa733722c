"""Entry points over an entry store: they give rows their times, record them for all sites, and mark them.

`core/entry.py` of `checkpoint` has the rules, `core/entry_messages.py` the messages. `origins.py` claims and
marks, `serving.py` talks to producers and peers, `row_times.py` gives batches their times, and `sending.py`
is the producer's side.
"""
