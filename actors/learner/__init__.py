"""The learner: model, objective, optimizer, packing, checkpoints, and the publication of weights."""
