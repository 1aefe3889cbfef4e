"""What benchmarks/mutation.py is made of: the mutants, and processes that run tests upon them."""
