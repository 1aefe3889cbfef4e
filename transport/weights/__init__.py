"""Weights beside the messages: a manifest that says what travels, and the transports that carry it."""

from headrace.transport.weights.manifest import Bucket, Manifest, TensorSpec, WeightsMismatch

__all__ = ["Bucket", "Manifest", "TensorSpec", "WeightsMismatch"]
