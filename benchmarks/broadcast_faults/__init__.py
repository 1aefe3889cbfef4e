"""The cast and the processes of benchmarks/fault_matrix.py."""
