"""Stories of a store: servers, writers of one journal, a reader, and what can go wrong between them.

Its files, from the bottom:

    middle      chance that always takes the middle: a quiet network, disks that lose half
    copies      what a copy holds, in words
    old_client  a client of the original service
    machine     the simulator's machine, without scrubbing
    writer      a writer that the story controls, and that reports the results
    play        the store, its time, and who is there
    commands    what a person does with `dos store`: the shells of `dos_client`, whole
    showing     what a reader is shown, and what every server says
    table       the words

Rules of this room: nothing is decided here; a story's words become calls of the simulator's parts.
"""
