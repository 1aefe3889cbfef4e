"""Weights by a collective broadcast: rank 0 (the learner) to every worker of every generator, in one group.

communicator.py is the interface (cupy.py: NCCL; memory.py: shared memory of one host); rank.py is one process's place
in its groups; passage.py moves a version bucket by bucket. Who is in a group, and what becomes of one
that fails, is the parameter server's business.
"""

COLLECTIVE = "nccl"
"""The transport that needs sender and receivers at once, by its name in a manifest and in `weights.transport`."""
STAGED, IN_PLACE = "staged", "in_place"
"""Its `location` in a manifest: whether receivers bring the version near before they pause, or (weights.staging=false)
pause and load each bucket as it arrives."""
HEADRACE, VLLM = "headrace", "vllm"
"""What is broadcast in a group: buckets below a title (passage.py), to workers that have our code; or tensor by tensor
as vLLM's own back-end takes them (vllm_native.py), to workers that have nothing of ours."""
