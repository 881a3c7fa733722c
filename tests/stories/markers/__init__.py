"""Stories of markers: the ends of steps that workers send each other, and what comes about by them.

The circuits are real, with their schedules and alignments; links are queues, and what is durable and
committed is decided as soon as it can be. The stories of a region have the coordinator's messages.

    words      the input, and the text of rows and frames
    play       the workers, and what happens in them next
    table      the words
"""
