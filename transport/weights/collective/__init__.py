"""Weights by a collective broadcast: rank 0 (the learner) to every worker of every generator, in one group.

communicator.py is the interface (cupy.py: NCCL; memory.py: shared memory of one host); rank.py is one process's place
in its groups; passage.py moves a version bucket by bucket. Who is in a group, and what becomes of one
that fails, is the parameter server's business.
"""
