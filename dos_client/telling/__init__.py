"""How claims and members stand: for people, logs and metrics. Decides nothing."""
