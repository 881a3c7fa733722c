"""The pure half of the dataflow: checks of a graph, its stages, the order of steps and their recorded
divisions.

No trio, os, socket, time, random, threading: time comes in as an argument.
"""
