"""A claim and its parts: a link per member, a copy per object and member, catching up."""
