"""Profiles of what ran on `tpu`: not built yet."""
