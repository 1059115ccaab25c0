"""Stages by the packages that define them (diffusers, LyCORIS, PEFT, ...), a page each, found by itself."""

from refsd.engines.torch.stages.torch_stage import TorchStage
from refsd.golden.pages import rows

STAGES: dict[str, TorchStage] = rows(__name__, "STAGES")
