"""The layouts of published files, small: their prefixes, and what they hold besides the weights.

Sources: ComfyUI, supported_models.py and sd.py (what it saves and reads); stable-diffusion.cpp,
name_conversion.cpp.
"""

import re

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file

from refsd.numerics.errors import BadInput
from refsd.weights import detect, open_checkpoint

ONE = np.ones(1, np.float32)
IDS = np.arange(9)[None]
UNET, VAE, SGM, COMFY = "model.diffusion_model.", "first_stage_model.", "conditioner.embedders.", "text_encoders."


@pytest.fixture(autouse=True)
def _narrow_bigg(monkeypatch):
    monkeypatch.setattr(detect, "_BIGG", small.BIGG)


# file -> family, then (prefix, whose weights, in which layout), then what else stands there
FILES = {
    "v1-5-pruned.ckpt": (
        "sd15",
        [(UNET, "sd15", "ldm"), (VAE, "vae", "ldm"), ("cond_stage_model.transformer.", "clip-l", "ldm")],
        {
            "model_ema.decay": ONE,
            "model_ema.diffusion_modelinput_blocks00weight": ONE,
            "alphas_cumprod": ONE,
            "logvar": ONE,
            "cond_stage_model.transformer.text_model.embeddings.position_ids": IDS,
        },
    ),
    "v2-1_768-ema-pruned": (
        "sd2",
        [(UNET, "sd2", "ldm"), (VAE, "vae", "ldm"), ("cond_stage_model.model.", "clip-h", "openclip")],
        {"cond_stage_model.model.logit_scale": ONE, "posterior_variance": ONE, "betas": ONE},
    ),
    "sd_xl_base_1.0": (
        "sdxl",
        [
            (UNET, "sdxl", "ldm"),
            (VAE, "vae", "ldm"),
            (f"{SGM}0.transformer.", "clip-l", "ldm"),
            (f"{SGM}1.model.", "clip-g", "openclip"),
        ],
        {
            f"{SGM}0.transformer.text_model.embeddings.position_ids": IDS,
            f"{SGM}1.model.logit_scale": ONE,
            "denoiser.sigmas": ONE,
        },
    ),
    "an SDXL of v-prediction, saved by ComfyUI": (
        "sdxl",
        [
            (UNET, "sdxl", "ldm"),
            (f"{SGM}0.transformer.", "clip-l", "ldm"),
            (f"{SGM}1.model.", "clip-g", "openclip"),
        ],
        {"v_pred": np.ones(0, np.float32), "ztsnr": np.ones(0, np.float32), "edm_mean": ONE, "edm_std": ONE},
    ),
    "sd_xl_refiner_1.0": (
        "sdxl-refiner",
        [(UNET, "sdxl-refiner", "ldm"), (VAE, "vae", "ldm"), (f"{SGM}0.model.", "clip-g", "openclip")],
        {f"{SGM}0.model.logit_scale": ONE},
    ),
    "sd3_medium_incl_clips_t5xxlfp16": (
        "sd3",
        [
            (UNET, "sd3", "original"),
            (VAE, "flux-vae", "ldm"),
            (f"{COMFY}clip_l.transformer.", "clip-l", "ldm"),
            (f"{COMFY}clip_g.transformer.", "clip-g", "ldm"),
            (f"{COMFY}t5xxl.transformer.", "t5xxl", "transformers"),
        ],
        {
            f"{COMFY}clip_l.logit_scale": ONE,
            f"{COMFY}clip_g.logit_scale": ONE,
            f"{COMFY}t5xxl.logit_scale": ONE,
            f"{COMFY}clip_l.transformer.text_projection.weight": np.eye(64, dtype=np.float32),
            f"{COMFY}t5xxl.transformer.encoder.embed_tokens.weight": ONE,
        },
    ),
    "flux1-dev-fp8": (
        "flux-dev",
        [
            (UNET, "flux-dev", "original"),
            ("vae.", "flux-vae", "ldm"),
            (f"{COMFY}clip_l.transformer.", "clip-l", "ldm"),
            (f"{COMFY}t5xxl.transformer.", "t5xxl", "transformers"),
        ],
        {f"{COMFY}clip_l.logit_scale": ONE, f"{COMFY}t5xxl.logit_scale": ONE},
    ),
    "z-image, all in one": (
        "zimage",
        [
            (UNET, "zimage", "original"),
            ("vae.", "flux-vae", "ldm"),
            (f"{COMFY}qwen3_4b.transformer.", "qwen3", "transformers"),
        ],
        {f"{UNET}norm_final.weight": ONE, f"{COMFY}qwen3_4b.logit_scale": ONE},
    ),
    "flux2-klein, all in one": (
        "flux2-klein",
        [
            (UNET, "flux2-klein", "original"),
            ("vae.", "flux2-vae", "any"),
            (f"{COMFY}qwen3_8b.transformer.", "qwen3", "transformers"),
        ],
        {"vae.bn.num_batches_tracked": np.array(3)},
    ),
    "flux2-dev, all in one": (
        "flux2-dev",
        [
            (UNET, "flux2-dev", "original"),
            ("vae.", "flux2-vae", "diffusers"),
            (f"{COMFY}mistral3_24b.transformer.", "mistral", "transformers"),
        ],
        {f"{COMFY}mistral3_24b.transformer.tekken_model": np.ones(7, np.uint8)},
    ),
    "chroma-unlocked": ("chroma", [("", "chroma", "original")], {}),
    "t5xxl_fp16": ("parts", [("", "t5xxl", "transformers")], {"encoder.embed_tokens.weight": ONE}),
    "umt5_xxl": ("parts", [("", "umt5", "transformers")], {"spiece_model": np.ones(9, np.uint8)}),
    "qwen_2.5_vl_7b": (
        "parts",
        [("", "qwen2.5-vl", "transformers"), ("visual.", "qwen2.5-vision", "transformers")],
        {"lm_head.weight": ONE},
    ),
    "a vision tower alone": ("parts", [("visual.", "qwen2.5-vision", "transformers")], {}),
    "Qwen2.5-VL of transformers 5": (
        "parts",
        [("", "qwen2.5-vl", "transformers 5"), ("model.visual.", "qwen2.5-vision", "transformers")],
        {"lm_head.weight": ONE},
    ),
    "Qwen2.5-VL in a whole file of ComfyUI": (
        "parts",
        [
            (f"{COMFY}qwen25_7b.transformer.", "qwen2.5-vl", "transformers"),
            (f"{COMFY}qwen25_7b.transformer.visual.", "qwen2.5-vision", "transformers"),
        ],
        {},
    ),
    "Qwen3-VL of transformers 5": (
        "parts",
        [("", "qwen3-vl", "original"), ("model.visual.", "qwen3-vision", "transformers")],
        {"lm_head.weight": ONE},
    ),
    "Qwen3-VL as Qwen2.5-VL was": (
        "parts",
        [("", "qwen3-vl", "transformers 4"), ("visual.", "qwen3-vision", "transformers")],
        {},
    ),
    "clip_l": (
        "parts",
        [("", "clip-l", "ldm")],
        {"logit_scale": ONE, "text_projection.weight": np.eye(64, dtype=np.float32)},
    ),
    "clip_g": ("parts", [("", "clip-g", "ldm")], {"logit_scale": ONE, "text_model.embeddings.position_ids": IDS}),
    "ae": ("parts", [("", "flux-vae", "ldm")], {}),
    "vae-ft-mse-840000": ("parts", [("", "vae", "ldm")], {"loss.logvar": ONE, "model_ema.decay": ONE}),
    "control_v11p_sd15_canny": ("parts", [("control_model.", "controlnet", "ldm")], {}),
    "sdxs-512, with a tiny autoencoder": (
        "sd15",
        [(UNET, "sd15", "ldm"), (VAE, "taesd", "diffusers"), ("cond_stage_model.transformer.", "clip-l", "ldm")],
        {},
    ),
    "an SDXL that sd.cpp renamed": (
        "sdxl",
        [
            (UNET, "sdxl", "ldm"),
            (VAE, "vae", "ldm"),
            ("cond_stage_model.transformer.", "clip-l", "ldm"),
            ("cond_stage_model.1.transformer.", "clip-g", "ldm"),
        ],
        {},
    ),
    "a transformer under ComfyUI's inner name": (
        "sd35-large",
        [("diffusion_model.", "sd35-large", "original")],
        {},
    ),
}
H = {"clip": small.FAMILIES["clip-l"]["clip"]._replace(projection=24)}


def tensors(parts):
    ours, kept = {}, {}
    for prefix, family, layout in parts:
        ((component, size),) = (H if family == "clip-h" else small.FAMILIES[family]).items()
        ours[component] = small.weights(component, size)
        kept |= {prefix + n: a for n, a in small.written(component, layout, size, ours[component]).items()}
    return ours, kept


@pytest.mark.parametrize("file", FILES)
def test_it_opens_and_is_what_it_is(tmp_path, file):
    family, parts, more = FILES[file]
    ours, kept = tensors(parts)
    save_file(kept | more, tmp_path / "a.safetensors")
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    assert checkpoint.family.name == family
    assert checkpoint.components.keys() == ours.keys()
    for component, arrays in ours.items():
        held = checkpoint.components[component]
        unread = {"text_projection.weight"} if component == "clip" else set()
        assert arrays.keys() - unread <= held.weights.keys() | {"text_projection.weight"}
        for name in arrays.keys() & held.weights.keys():
            np.testing.assert_array_equal(held.weights[name].values(), arrays[name])


@pytest.mark.parametrize(
    ("family", "architecture", "component"),
    [
        ("qwen2.5-vl", "qwen2vl", "qwen2_5_vl"),
        ("qwen3-vl", "qwen3vl", "qwen3_vl"),
        ("qwen3", "qwen3", "qwen3"),
        ("qwen2.5-vision", "clip", "qwen2_5_vision"),
        ("qwen3-vision", "clip", "qwen3_vision"),
    ],
)
def test_a_gguf_of_a_language_model_is_what_its_architecture_says(tmp_path, family, architecture, component):
    """Qwen3's and Qwen3-VL's tensors have the same names and shapes; their rotary base is not the same."""
    ((of, size),) = small.FAMILIES[family].items()
    arrays = small.weights(of, size)
    path = small.save_gguf(tmp_path / "a.gguf", small.written(of, "llama.cpp", size, arrays), arch=architecture)
    (held,) = open_checkpoint(path).components.values()
    assert (held.name, held.layout) == (component, "llama.cpp")
    for name, array in arrays.items():
        np.testing.assert_array_equal(held.weights[name].values(), array)


@pytest.mark.parametrize("family", ("flux-dev", "chroma", "chroma-radiance", "flux2-dev"))
def test_norms_that_comfyui_saved_anew(tmp_path, family):
    ours, kept = tensors([(UNET, family, "original")])
    anew = {re.sub(r"\.scale$", ".weight", name): array for name, array in kept.items()}
    assert anew.keys() != kept.keys()
    save_file(anew, tmp_path / "a.safetensors")
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    assert checkpoint.family.name == family
    for component, arrays in ours.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(checkpoint.components[component].weights[name].values(), array)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("double_blocks.9.img_attn.qkv.weight.quant_state.bitsandbytes__nf4", "4-bit weights of bitsandbytes"),
        ("single_blocks.0.linear1.weight.SCB", "8-bit weights of bitsandbytes without their codes"),
        ("tok_embeddings.weight", "a language model under Mistral's own names"),
        ("single_blocks.0.linear1.qweight", "4-bit weights of GPTQ or Nunchaku"),
        ("lora_controlnet", "Control-LoRA"),
        ("controlnet_x_embedder.weight", "a transformer's ControlNet"),
        ("transformer_blocks.0.attn.to_q.lora_A.weight", "a LoRA for no model that refsd knows"),
    ],
)
def test_what_refsd_does_not_run_is_named(tmp_path, name, says):
    _, kept = tensors([("", "flux-dev", "original")])
    save_file(kept | {name: ONE}, tmp_path / "a.safetensors")
    with pytest.raises(BadInput, match=f"refsd does not run {says}"):
        open_checkpoint(tmp_path / "a.safetensors")


def test_unclip_is_not_taken_for_sdxl(tmp_path):
    size = small.FAMILIES["sd2"]["unet"]._replace(label=1536, context_dim=1024)
    save_file(small.weights("unet", size), tmp_path / "a.safetensors")
    family = open_checkpoint(tmp_path / "a.safetensors").family
    assert (family.name, family.why) == ("sd2-unclip", "label_emb of 1536 channels, a text of 1024")


@pytest.mark.parametrize("layout", ["diffusers", "comfyui"])
def test_wan_22_s_autoencoder_is_not_taken_for_qwen_image_21_s(tmp_path, layout):
    """They have the same names; Wan 2.2's convolutions see three frames, those of Qwen-Image 2.1's one."""
    for family in ("qwen-image21-vae", "wan22-vae"):
        ((of, size),) = small.FAMILIES[family].items()
        save_file(small.written(of, layout, size, small.weights(of, size)), tmp_path / "a.safetensors")
        checkpoint = open_checkpoint(tmp_path / "a.safetensors")
        assert [*checkpoint.components] == [of] and not checkpoint.unknown
