"""Requests to a running region through its store: the queue, the client, the driver's server."""
