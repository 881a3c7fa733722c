"""The pure half of the dataflow: graph checks, stages, and the order of steps and their recorded divisions.

It uses no trio, os, socket, time, random or threading; time is an argument.
"""
