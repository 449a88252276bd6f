"""PyTorch's traces: what the profiler (Kineto) and the execution trace observer write."""
