"""What a learner does in turn: `pretrain` on documents, `rl` on sessions."""
