"""The parts of benchmarks/async_vs_sync.py: simulated engines and a simulated learner around the real actors."""
