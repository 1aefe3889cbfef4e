"""From a config to running, supervised processes: CLI, preflight, placement, supervision, report, export."""
