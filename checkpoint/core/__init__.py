"""The pure half: vocabulary, byte layouts, and state machines `handle(event, now) -> list[effect]`.

Modules here import no trio, os, socket, time, random or threading; time and randomness are arguments.
Therefore a whole region can run in one process from one seed.
"""
