"""Stories of a store: servers, writers of one journal, a reader, and what can go wrong between them.

middle     chance that always takes the middle: a quiet network, disks that lose half
machine    the simulator's machine, and what its server writes in its log
copies     what a copy holds, in words
writer     a writer that does what it is told, and tells what came of it
play       the store, its time, and who is there
table      the words
"""
