"""Recording a trace: a PyTorch step on a GPU, or on meta tensors with predicted times."""
