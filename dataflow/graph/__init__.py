"""Building and checking a graph: streams, operators, schemas, parts, pictures."""
