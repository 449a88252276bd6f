"""What happened inside GPUs: the answer of the load-store level."""
