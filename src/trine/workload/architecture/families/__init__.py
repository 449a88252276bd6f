"""Families of Hugging Face models: each function turns the keys of a config into an architecture."""
