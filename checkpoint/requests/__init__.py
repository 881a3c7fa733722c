"""Requests to a running region through its store: the queue, the client that asks, the driver's server."""
