"""Readers of PyTorch's traces: files of the profiler (Kineto) and of the execution trace observer."""
