"""Algorithms of collectives: who sends which chunk to whom in which step, each as a function of the rank."""
