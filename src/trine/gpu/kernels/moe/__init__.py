"""Dispatch and combine of a mixture of experts, as DeepEP's kernels do them."""
