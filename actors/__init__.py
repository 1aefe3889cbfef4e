"""What the system does: one folder an actor kind, the typed messages between them, and the vocabulary of sessions."""
