"""Small programs written after public bug reports, run on the CPU and on `tpu` (see test_cases.py)."""
