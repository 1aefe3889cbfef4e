"""The learner: model, objective, optimizer, packing, checkpoints, and the publication of weights.

`actor.py` is the actor, `stages/` what it does in turn, `trainer.py` one optimizer step. Plug-ins: `objectives/`,
`advantages/`, `aggregation/`, `documents.py`.
"""
