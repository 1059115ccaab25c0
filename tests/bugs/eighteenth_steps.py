"""An eighteenth fresh set, of samplers, guidance, requests and files: drawn before a look at the judge."""

from held_out import HeldOut

_TABLE = {
    "eh-smp-01": ("sampler", "ml-explore/mlx-examples#1131, has a case", None),
    "eh-nse-01": ("pipeline", "utensils/mold#34, its second, has a case", None),
    "eh-pix-01": ("pipeline", "utensils/mold#34, its third, has a case", None),
    "eh-cfg-01": (
        "pipeline",
        "chairc/Integrated-Design-Diffusion-Model#189, its first: a solver's first call",
        None,
    ),
    "eh-smp-02": ("sampler", "chairc/Integrated-Design-Diffusion-Model#189, its second: an end above 0", None),
    "eh-lora-01": ("loader", "WalkingMeatAxolotl/AnimaLoraStudio#169, its first, has a case", None),
    "eh-lora-02": ("loader", "WalkingMeatAxolotl/AnimaLoraStudio#169, its second, has a case", None),
    "eh-lat-01": ("pipeline", "huggingface/diffusers#11639, has a case", None),
    "eh-smp-03": ("sampler", "modular/modular#5922, its second: a step for the references, too", None),
    "eh-lora-03": ("loader", "huggingface/diffusers#9348, an adapter of two streams", None),
    "eh-ld-01": ("loader", "invoke-ai/InvokeAI#9478, what its review finds, has a case", None),
    "eh-ld-02": ("loader", "sgl-project/sglang#28546, one scale for parts that are joined", None),
    "eh-cfg-02": ("pipeline", "vllm-project/vllm-omni#6954, has a case", None),
    "eh-cfg-03": ("pipeline", "sgl-project/sglang#16377, has a case", None),
}
EIGHTEENTH_STEPS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
