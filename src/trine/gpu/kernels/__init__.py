"""Collectives as GPU programs: built, or from MSCCL++ and MSCCL plans."""
