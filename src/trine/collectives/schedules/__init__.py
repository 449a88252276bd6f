"""Algorithms of collectives: functions from a rank to its sends, with chunk, receiver and step of each."""
