"""Benchmarks: ratios between peers that take turns in one process, medians of many rounds. `make bench` runs them."""
