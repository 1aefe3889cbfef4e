"""How the model folder of a run comes to be: made from scratch, found on disk, on a hub or in a run, or
converted from a package."""

from headrace.launch.models.existing import ExistingModel
from headrace.launch.models.gguf_package import GgufPackage
from headrace.launch.models.model_source import ModelSource
from headrace.launch.models.run_checkpoint import RunCheckpoint
from headrace.launch.models.scratch_llama import ScratchLlama

__all__ = ["ExistingModel", "GgufPackage", "ModelSource", "RunCheckpoint", "ScratchLlama"]
