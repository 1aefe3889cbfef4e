"""Slow NumPy twins in float64, written like the papers, one sequence and one token at a time. What the learner computes
is compared with them, by the tests and by `benchmarks/objectives.py`; nothing that trains imports them."""
