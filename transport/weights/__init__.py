"""Weights beside the messages: a manifest that says what travels, and the transports that carry it.

Imports no torch: the parameter server needs the manifest only.
"""

from headrace.transport.weights.carrier import (
    ON_DEVICE,
    SenderSettings,
    StagedVersion,
    WeightReceiver,
    WeightSender,
    make_sender,
    open_weights,
)
from headrace.transport.weights.manifest import (
    Adapter,
    Bucket,
    Expected,
    Manifest,
    Probe,
    TensorSpec,
    WeightsMismatch,
    check_expected,
    check_min_mb_per_s,
    same_weights,
)

__all__ = [
    "ON_DEVICE",
    "Adapter",
    "Bucket",
    "Expected",
    "Manifest",
    "Probe",
    "SenderSettings",
    "StagedVersion",
    "TensorSpec",
    "WeightReceiver",
    "WeightSender",
    "WeightsMismatch",
    "check_expected",
    "check_min_mb_per_s",
    "make_sender",
    "open_weights",
    "same_weights",
]
