"""A page on this machine that shows a running simulation, pauses, resumes, steps and stops it."""
