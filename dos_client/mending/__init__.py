"""Comparing copies by digest, and replacing bad ones."""
