"""Qwen-Image's ControlNet against diffusers in float64: every tap, the picture's velocity, names, a picture."""

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImageControlNetModel, QwenImageControlNetPipeline
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw
from test_models_qwen_image import peer_qwen_image, weights_of
from test_models_vae_wan import peer_vae
from test_pictures import agree, answer, encoders, of
from test_pictures_given import _lifted  # noqa: F401

from refsd.components import forward
from refsd.families.family import Condition
from refsd.models.flux import pack
from refsd.models.qwen_image.component import CONTROL
from refsd.models.qwen_image_controlnet.network import qwen_image_control_size
from refsd.models.vae_wan.network import WanVAESize
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.pipelines.txt2img import Conditioning
from refsd.weights import open_checkpoint

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

CONTEXT = 11
AXES = (16, 56, 56)


def peer_control(layers, extra=0, context=CONTEXT, heads=1, channels=16):
    return QwenImageControlNetModel(
        in_channels=4 * channels,
        out_channels=channels,
        num_layers=layers,
        num_attention_heads=heads,
        joint_attention_dim=context,
        axes_dims_rope=AXES,
        extra_condition_channels=extra,
    )


# Blocks of the transformer and of the ControlNet; more channels of the hint's tokens; other words for the latter
CONFIGS = {"whole runs": (4, 2, 0, False), "a shorter last run": (5, 2, 0, True), "with a mask": (2, 2, 4, True)}


@pytest.mark.parametrize("case", CONFIGS)
def test_every_tap_and_the_controlled_transformer(case):
    """H != W, an odd number of rows; a batch of two, whose words differ in number."""
    layers, own, extra, others = CONFIGS[case]
    H, W, strength, heads = 6, 10, 0.7, 2
    given = {"x": draw((2, 16, H, W), 1), "timesteps": np.array([0.25, 0.731]), "context": draw((2, 7, CONTEXT), 2)}
    given |= {"context_mask": np.array([[1] * 7, [1] * 4 + [0] * 3]), "hint": draw((2, 16 + extra // 4, H, W), 3)}
    words, seen = given["context"], given["context_mask"]
    if others:
        words, seen = draw((2, 9, CONTEXT), 4), np.array([[1] * 5 + [0] * 4, [1] * 9])
        given |= {"hint_context": words, "hint_mask": seen}
    with float64_throughout():
        peer, control = peer_qwen_image(heads, AXES, layers, CONTEXT), peer_control(own, extra, heads=heads)
        redraw(peer, 5)
        redraw(control, 6)
        shapes = [[(1, H // 2, W // 2)]] * 2
        same = {"timestep": of(given["timesteps"]), "img_shapes": shapes, "hidden_states": of(pack(given["x"]))}
        with outputs_of(control) as theirs:
            hints = control(
                **same,
                controlnet_cond=of(pack(given["hint"])),
                conditioning_scale=strength,
                encoder_hidden_states=of(words),
                encoder_hidden_states_mask=of(seen),
            ).controlnet_block_samples
            theirs = dict(theirs)
        want = peer(
            **same,
            encoder_hidden_states=of(given["context"]),
            encoder_hidden_states_mask=of(given["context_mask"]),
            controlnet_block_samples=hints,
        ).sample
    weights = weights_of(peer) | {f"{CONTROL}.{name}": w for name, w in weights_of(control).items()}
    m = Module(weights, taps=Taps(ops=True))
    got = forward("qwen-image", m, given, {"control_strength": strength})["out"]
    assert distance(pack(got), want) <= 1e-12
    names = {at: at.removeprefix(f"{CONTROL}.").removesuffix(".weight") for at in m.taps if at.startswith(CONTROL)}
    held = {at: name for at, name in names.items() if name in theirs and isinstance(theirs[name], torch.Tensor)}
    assert len(held) == 50
    for at, name in held.items():
        assert distance(m.taps[at], theirs[name]) <= 1e-12, at
    size = qwen_image_control_size({name: w.shape for name, w in weights_of(control).items()})
    assert (size.layers, size.hint, size.hidden) == (own, 16 + extra // 4, 256)


H, W, SEED = 32, 48, 7
PICTURE = np.abs(np.sin(draw((1, 3, H, W), 11)))


@pytest.mark.parametrize(
    ("cfg", "strength", "share"), [(3.5, 0.7, (0.0, 1.0)), (1.0, 1.25, (0.0, 0.7)), (2.0, 1.0, (0.3, 1.0))]
)
def test_a_picture(tmp_path, cfg, strength, share):
    """The hint is drawn from its posterior before the noise; the call without the prompt has the other's hints."""
    start, end = share
    scheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
    )
    texts = [draw((1, 9, 256), 2), draw((1, 4, 256), 3)]
    with float64_throughout():
        parts = {
            "transformer": peer_qwen_image(1, AXES, 3, 256),
            "vae": peer_vae(WanVAESize(8, (8, 16, 32, 32), 1)),
            "controlnet": peer_control(2, context=256),
        }
        for i, part in enumerate(parts.values()):
            redraw(part, 4 + i)
        for name, part in {**parts, "scheduler": scheduler}.items():
            part.save_pretrained(tmp_path / name)
        encoders(tmp_path, "qwen2_5_vl")
        ours = open_pipeline(open_checkpoint(tmp_path), Tokenizers(), Arithmetic(FLOAT64), 1 << 30)
        images = ConditioningImages(control=PICTURE)
        settings = Settings("", "", W, H, 3, cfg, like="diffusers", control_strength=strength, seed=SEED)
        plan = resolve(ours, settings._replace(control_start=start, control_end=end), images)
        networks = parts["transformer"], parts["controlnet"]
        pipe = QwenImageControlNetPipeline(scheduler, parts["vae"], None, None, *networks)
        words = {"prompt_embeds": of(texts[0]), "negative_prompt_embeds": of(texts[1])}
        for text, name in zip(texts, [*words], strict=True):
            words[f"{name}_mask"] = torch.ones(1, text.shape[1], dtype=torch.long)
        theirs = answer(
            pipe,
            SEED,
            **words,
            num_inference_steps=3,
            true_cfg_scale=cfg,
            width=W,
            height=H,
            control_image=of(2 * PICTURE - 1),
            controlnet_conditioning_scale=strength,
            control_guidance_start=start,
            control_guidance_end=end,
        )
        latents = pipe._unpack_latents(theirs[0], H, W, 8)[:, :, 0]
    cond, uncond = (Condition(text) for text in texts)
    conditioning = Conditioning(cond, uncond if cfg != 1 else None)
    latent = txt2img.sample(ours, plan, conditioning, SEED)
    agree((latent, np.clip(txt2img.decode(ours, latent), -1, 1)), (latents, theirs[1]))
