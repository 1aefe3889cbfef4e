"""Hydra groups: the defaults of everything built in (searched as pkg://headrace.configs)."""
