"""Measured runs of several ranks: their traces, aligned by collectives, and the causes of lost time."""
