"""The parts of benchmarks/model_table.py."""
