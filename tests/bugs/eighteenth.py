"""An eighteenth fresh set, of models: from public trackers, drawn before a look at the judge."""

from eighteenth_operations import EIGHTEENTH_OPERATIONS
from eighteenth_steps import EIGHTEENTH_STEPS
from held_out import HeldOut

_TABLE = {
    "eh-mod-01": ("model", "huggingface/pytorch-image-models#2478, a class token among turned patches", None),
    "eh-mod-02": ("model", "modelscope/DiffSynth-Studio#562 and #1025, has a case", None),
    "eh-mod-03": ("model", "kohya-ss/musubi-tuner#729, has a case", None),
    "eh-mod-04": ("model", "huggingface/diffusers#9405, has a case", None),
    "eh-te-01": ("model", "huggingface/diffusers#13585, its first, has a case", None),
    "eh-te-02": ("model", "WalkingMeatAxolotl/AnimaLoraStudio#169, its third, has a case", None),
    "eh-vae-01": ("model", "NVIDIA/DreamDojo#13, has a case", None),
    "eh-vae-02": ("model", "james-see/ltx-video-mac#34, its second, has a case", None),
    "eh-vae-03": ("model", "james-see/ltx-video-mac#47, its third, has a case", None),
    "eh-vae-04": ("model", "vladmandic/sdnext#5038, a tiny decoder of video", None),
    "eh-mod-05": ("model", "openvinotoolkit/openvino#37663, its second, has a case", None),
    "eh-mod-06": ("model", "sgl-project/sglang#24660, has a case", None),
}
EIGHTEENTH: dict[str, HeldOut] = {
    **EIGHTEENTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **EIGHTEENTH_STEPS,
}
