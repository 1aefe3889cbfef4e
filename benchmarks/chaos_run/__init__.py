"""One real run that is struck by faults, and what is checked from outside when it has ended."""
