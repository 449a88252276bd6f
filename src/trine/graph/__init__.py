"""The two graphs of a job: operators of one GPU (``Workload``) and tasks of all GPUs (``TaskGraph``)."""
