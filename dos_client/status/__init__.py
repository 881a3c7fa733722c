"""How a store and a claim are doing, for people and for metrics."""
