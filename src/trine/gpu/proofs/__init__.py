"""Proofs of GPU programs: every rank ends with the collective's result, in whatever order its wavefronts run."""

from trine.gpu.proofs.check import ProgramProof, check_program

__all__ = ["ProgramProof", "check_program"]
