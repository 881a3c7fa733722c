"""Reading without a claim: hedged, committed, ahead, for ever; and what turned out to be wrong."""
