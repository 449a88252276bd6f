"""Inference: the time of prefill and decode steps, and the latency and throughput of a served model."""
