"""MSCCL++ plans and MSCCL XML as GPU programs: docs/guides/plans-on-gpus.md."""
