"""What the learner measures about its own data: effective sample size, log-prob gaps, lag. Pure NumPy."""
