"""trine: how long a deep-learning job takes on many GPUs, and why."""

__version__ = "0.1.0"
