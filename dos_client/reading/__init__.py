"""Reads without a claim: hedged, committed, ahead, followed; and the damage that they find."""
