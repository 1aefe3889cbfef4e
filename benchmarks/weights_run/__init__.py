"""The parts of benchmarks/weights.py."""
