"""Search over the parallel layouts of a job (``trine plan``)."""
