"""Hop: decentralised training in which workers wait for some of their neighbours, with tokens and skips."""
