"""Weights and masks for tokens that another policy sampled: one file each, all behind `protocol.Correction`."""

from headrace.actors.learner.corrections.protocol import Correction
from headrace.actors.learner.corrections.tis import Tis

__all__ = ["Correction", "Tis"]
