"""What follows from a run: metrics, and the result in every form that people and programs read."""
