"""The parts of benchmarks/delta.py."""
