"""ControlNets by diffusers' pipeline, with networks that return the case's tensors."""

from collections.abc import Set
from typing import Any

from refsd.engines.torch.stages.torch_stage import SD, Params, TorchStage


def _refuses(p: Params, inputs: Set[str]) -> str | None:
    if p["engine"] != "diffusers":
        return f"diffusers does not follow {p['engine']}'s rule"
    return None if p["mode"] in ("balanced", "guess") else f"diffusers has no mode {p['mode']}"


def _networks(torch, t):
    """Build a UNet that records what is added to it, and a ControlNet that returns the case's residuals.

    -> UNet, ControlNet, list of what was added at each call, list of the ControlNet's (picture, text, strength)
    """
    from diffusers import ControlNetModel, UNet2DConditionModel

    small = {"block_out_channels": (4, 4), "layers_per_block": 1, "norm_num_groups": 2, "cross_attention_dim": 6}
    unet = UNet2DConditionModel(
        **small,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=2,
        sample_size=t["residual"].shape[-2:],
    )
    net = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(2, 2, 2, 2))
    added, shown = [], []

    class Given(torch.nn.Module):
        def __init__(self, residual):
            super().__init__()
            self.residual = residual

        def forward(self, x):
            return self.residual[-len(x) :]

    net.controlnet_down_blocks = torch.nn.ModuleList([Given(one) for one in t["residual"][:-1]])
    net.controlnet_mid_block = Given(t["residual"][-1])

    def note(module, arguments, named):
        shown.append((named["controlnet_cond"], named["encoder_hidden_states"][:, 0], named["conditioning_scale"]))

    net.register_forward_pre_hook(note, with_kwargs=True)

    def forward(x, *rest, down_block_additional_residuals, mid_block_additional_residual, **named):
        added.append(torch.stack([*down_block_additional_residuals, mid_block_additional_residual]))
        return (torch.zeros_like(x),)

    unet.forward = forward
    return unet, net, added, shown


def _run(torch, t, p: Params) -> dict[str, Any]:
    from diffusers import EulerDiscreteScheduler, StableDiffusionControlNetPipeline

    unet, net, added, shown = _networks(torch, t)
    parts = dict.fromkeys(("vae", "text_encoder", "tokenizer", "safety_checker", "feature_extractor"))
    pipe = StableDiffusionControlNetPipeline(
        **parts, unet=unet, controlnet=net, scheduler=EulerDiscreteScheduler(**SD), requires_safety_checker=False
    )
    pipe.set_progress_bar_config(disable=True)
    without, with_prompt = t["text"][:, None].chunk(2)
    pipe(
        image=t["hint"],
        prompt_embeds=with_prompt,
        negative_prompt_embeds=without,
        num_images_per_prompt=p["each"],
        num_inference_steps=p["steps"],
        guidance_scale=2.0,
        guess_mode=p["mode"] == "guess",
        controlnet_conditioning_scale=p["strength"],
        control_guidance_start=p["start"],
        control_guidance_end=p["end"],
        output_type="latent",
    )
    keep = torch.tensor([scale for _, _, scale in shown])
    hint, text, _ = shown[0]
    active = next(i for i, scale in enumerate(keep) if scale)
    return {"keep": keep, "hint": hint, "text": text, "added": added[active]}


STAGES = {"stage/control": TorchStage("diffusers", _refuses, _run)}
