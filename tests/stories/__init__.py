"""Stories: short texts that show a rule at work, replayed by a test. README.md: how to read and write them.

Rules of this room, from the bottom:

    script     the file: what is written by hand, what the program prints
    words      forms of steps, such as `{writer} appends {count} record(s)`, and how a step is matched to one
    store/     a store and its writers: the cores of the simulator's first tier, on its virtual time
    region/    a region: coordinators and participants, with a model of the manifest
    replay     one file, told anew

A story decides nothing and checks nothing of its own: it says what is to happen, and the cores say what did.
"""
