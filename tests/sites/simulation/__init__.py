"""A simulation of applications over sites, with network delays from a trace (`./run sites-sim`).

trace       the file of delays, and what is refused
generator   traces that are made up, with the properties of the paper's
network     when what is sent over a link arrives
query       the paper's application, as a description for the planner, and its rows
flow        when each row is at each replica and exit, through real filters or by arithmetic
engine      one run: the plan, collection and revival, and what it costs
report      latencies and costs of runs
"""
