"""Kernels for GPUs, written in Triton; everything they do also has a plain form."""
