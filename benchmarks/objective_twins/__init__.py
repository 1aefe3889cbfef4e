"""Slow twins of the learner's mathematics, written like the papers. `benchmarks/objectives.py` and tests use them."""
