"""A claim and everything under it: one link a member, one copy an object, catching up."""
