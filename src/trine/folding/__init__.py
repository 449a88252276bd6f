"""Exact simulation of large jobs: find the ranks that behave identically, and simulate one rank per class."""
