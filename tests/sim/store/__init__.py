"""A store and its clients: machines with the real server core, sessions, claims, writers, readers."""
