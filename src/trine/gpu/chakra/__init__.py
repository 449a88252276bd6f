"""Chakra traces at the load-store level: nodes as kernels that share the compute units."""
