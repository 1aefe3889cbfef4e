"""The environment: one session at a time per slot; turn loop, tools, exact tokens."""
