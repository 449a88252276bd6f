"""The load-store level: loads, stores and semaphores inside GPUs and between them (docs/design/gpu-model.md)."""
