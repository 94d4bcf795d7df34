"""Conformance: every sample of PyTorch's own operator databases, on `tpu` against the CPU.

`python -m tests.conformance --help` runs any part of it; `make conformance` all of it, and writes docs/ops.md.
"""
