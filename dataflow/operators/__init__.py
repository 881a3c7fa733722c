"""Operators: the steps that transform rows between the sources and the sinks of a graph."""
