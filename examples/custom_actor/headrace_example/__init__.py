"""A grader, an environment and a new actor kind for Headrace, plugged in by YAML alone."""
