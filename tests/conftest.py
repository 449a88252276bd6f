"""Puts this folder on the path, so that every suite can import the builders of small cases (synthetic.py)."""
