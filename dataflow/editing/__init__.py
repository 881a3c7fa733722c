"""Edits of state: rows that a person writes into the state of operators."""
