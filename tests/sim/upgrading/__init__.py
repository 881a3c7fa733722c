"""A model of graphs that change between two starts, with the rules as switches.

Random histories: programs with other graphs start, stop, race, stand still and are killed between any two
messages; regions go back, fall back, are scaled and forked. An ideal run by names is the oracle. `OMISSIONS`
leaves out one rule each.

What runs of the product: the comparison (`graph_change.compare`), checkpoint records with their lines, votes
and retention (`records/`, `PendingCheckpoint`), needs of consumers. Shorter implementations: drivers,
workers, chains, logs, and what records do not state yet (`rules.Record`).

    graphs     operators, what a step makes of rows, notes
    rules      the decision, options, the rules that can be left out
    durable    the store: manifests, chains, logs, inputs, destinations outside
    driver     a program from its start to its end, point by point
    edits      random changes of a graph, with their options
    ideal      the oracle
    histories  what happens; `run_history` is one seed
"""
