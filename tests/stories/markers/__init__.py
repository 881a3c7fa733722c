"""Stories of markers: the ends of steps that workers send each other, and what comes about by them.

The circuits are real, with their schedules and alignments; links are queues, and what is durable and
committed is decided as soon as it can be. What a coordinator says is told in the stories of a region.

    words      the input, and how rows and frames are told
    play       the workers, and what happens in them next
    table      the words
"""
