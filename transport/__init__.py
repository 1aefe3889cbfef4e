"""How messages and weights travel. Knows nothing of reinforcement learning."""
