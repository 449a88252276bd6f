"""Frozen data without logic: what the other packages hand to each other."""
