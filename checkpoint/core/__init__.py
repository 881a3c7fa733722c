"""The pure half: vocabulary, layouts of bytes, and state machines `handle(event, now) -> list[effect]`.

No trio, os, socket, time, random, threading: time and randomness come in as arguments. So a whole region
can run in one process from one seed.
"""
