"""Random programs of views and writes, on the CPU and on `tpu`, compared after each line."""
