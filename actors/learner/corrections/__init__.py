"""Weights and masks for tokens that another policy sampled: one file each, all behind `protocol.Correction`."""

from headrace.actors.learner.corrections.geo import Geo
from headrace.actors.learner.corrections.icepop import Icepop
from headrace.actors.learner.corrections.mis import Mis
from headrace.actors.learner.corrections.opsm import Opsm
from headrace.actors.learner.corrections.protocol import Correction
from headrace.actors.learner.corrections.tis import Tis
from headrace.actors.learner.corrections.veto import Veto

__all__ = ["Correction", "Geo", "Icepop", "Mis", "Opsm", "Tis", "Veto"]
