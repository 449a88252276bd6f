"""Measurement of a GPU's kernels through PyTorch: the file that ``--gpu FILE`` reads."""
