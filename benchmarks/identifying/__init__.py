"""What `benchmarks/self_identifying.py` runs: weights that say their version, who publishes them, who reads them."""
