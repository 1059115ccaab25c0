"""Where a file keeps a component: a prefix, names that give it away, and the table to the original's names."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from refsd.weights import (
    keymaps,
    keymaps_chroma,
    keymaps_controlnet,
    keymaps_esrgan,
    keymaps_flux2,
    keymaps_mmdit,
    keymaps_norms,
    keymaps_sdxl,
    keymaps_taesd,
    keymaps_text,
    keymaps_tiny_unet,
    keymaps_zimage,
)
from refsd.weights.keymaps import Keymap
from refsd.weights.keymaps_openclip import OpenCLIP
from refsd.weights.sizes import count


class Place(NamedTuple):
    """A component's tensors stand under `prefix`; some name goes on with one of `witnesses`."""

    component: str
    layout: str
    prefix: str
    witnesses: tuple[str, ...]
    keymap: Callable[[Collection[str]], Keymap]


def _same(_: Collection[str]) -> Keymap:
    return Keymap((), rest_same=True)


def _flux(names: Collection[str]) -> Keymap:
    return keymaps_norms.norms(names)


def _ldm_unet(names: Collection[str]) -> Keymap:
    return keymaps_tiny_unet.of_names(names) if keymaps_tiny_unet.is_tiny(names) else _same(names)


def _diffusers_unet(names: Collection[str]) -> Keymap:
    places = {tuple(name.split(".", 3)[:3]) for name in names}
    levels = count(names, "down_blocks.", 4)
    attention = [n for n in range(levels) if ("down_blocks", str(n), "attentions") in places]
    return keymaps_sdxl.unet(levels, count(names, "down_blocks.0.resnets.", 2), attention)


def _diffusers_controlnet(names: Collection[str]) -> Keymap:
    return keymaps_controlnet.controlnet(count(names, "down_blocks.", 4), count(names, "down_blocks.0.resnets.", 2))


def _diffusers_vae(names: Collection[str]) -> Keymap:
    return keymaps.vae(*_vae_counts(names))


def _vae_counts(names: Collection[str]) -> tuple[int, int]:
    return count(names, "encoder.down_blocks.", 4), count(names, "encoder.down_blocks.0.resnets.", 2)


def _any_flux2_vae(names: Collection[str]) -> Keymap:
    if any(name.startswith(_DIFFUSERS_VAE) for name in names):
        return keymaps_flux2.vae(*_vae_counts(names))
    return keymaps_flux2.vae_original()


def _tae_encoder(names: Collection[str]) -> Keymap:
    return keymaps_taesd.taesd_half("encoder", count(names, "", 15))


def _tae_decoder(names: Collection[str]) -> Keymap:
    return keymaps_taesd.taesd_half("decoder", count(names, "", 20))


def _diffusers_tae(names: Collection[str]) -> Keymap:
    return keymaps_taesd.taesd(count(names, "encoder.layers.", 15), count(names, "decoder.layers.", 19))


def _named_esrgan(names: Collection[str]) -> Keymap:
    return keymaps_esrgan.esrgan_named(count(names, "RRDB_trunk.", 23))


def _numbered_esrgan(names: Collection[str]) -> Keymap:
    last = count(names, "model.", 11) - 1
    scale = next((scale for scale, rows in keymaps_esrgan.NUMBERED.items() if rows[-1][1] == last), 4)
    return keymaps_esrgan.esrgan_numbered(count(names, "model.1.sub.", 24) - 1, scale)


def _openclip(names: Collection[str]) -> Keymap:
    return OpenCLIP(count(names, "transformer.resblocks.", 24))


def _diffusers_flux(names: Collection[str]) -> Keymap:
    return keymaps.flux(count(names, "transformer_blocks.", 19), count(names, "single_transformer_blocks.", 38))


def _diffusers_flux2(names: Collection[str]) -> Keymap:
    return keymaps_flux2.flux2(
        count(names, "transformer_blocks.", 8), count(names, "single_transformer_blocks.", 48)
    )


def _diffusers_chroma(names: Collection[str]) -> Keymap:
    blocks = count(names, "transformer_blocks.", 19), count(names, "single_transformer_blocks.", 38)
    return keymaps_chroma.chroma(*blocks, count(names, "distilled_guidance_layer.layers.", 5))


def _diffusers_mmdit(names: Collection[str]) -> Keymap:
    return keymaps_mmdit.mmdit(count(names, "transformer_blocks.", 24))


def _split_zimage(names: Collection[str]) -> Keymap:
    return keymaps_zimage.zimage(count(names, "layers.", 30), count(names, "noise_refiner.", 2))


def _gguf_t5(names: Collection[str]) -> Keymap:
    return keymaps_text.t5_gguf(count(names, "enc.blk.", 24))


def _gguf_qwen3(names: Collection[str]) -> Keymap:
    return keymaps_text.qwen3_gguf(count(names, "blk.", 36))


def _gguf_mistral(names: Collection[str]) -> Keymap:
    return keymaps_flux2.mistral_gguf(count(names, "blk.", 40))


def _places(
    component: str,
    layout: str,
    prefixes: Iterable[str],
    witnesses: tuple[str, ...],
    keymap: Callable[[Collection[str]], Keymap],
) -> list[Place]:
    return [Place(component, layout, prefix, witnesses, keymap) for prefix in prefixes]


def _clip(_: Collection[str]) -> Keymap:
    return keymaps.clip()


def _vae(_: Collection[str]) -> Keymap:
    return keymaps.vae_original()


def _t5(names: Collection[str]) -> Keymap:
    """Of a table that stands there twice, `shared` is read."""
    return _same(names) if "shared.weight" in names else keymaps_text.t5()


def _qwen3(_: Collection[str]) -> Keymap:
    return keymaps_text.qwen3()


def _mistral(_: Collection[str]) -> Keymap:
    return keymaps_flux2.mistral()


_LDM_UNET = ("input_blocks.", "middle_block.", "output_blocks.")
_DIFFUSERS_UNET = ("down_blocks.", "mid_block.", "up_blocks.")
_LDM_VAE = ("encoder.down.", "encoder.mid.", "decoder.up.", "decoder.mid.")
_DIFFUSERS_VAE = ("encoder.down_blocks.", "encoder.mid_block.", "decoder.up_blocks.", "decoder.mid_block.")
_CLIP = ("text_model.", "embeddings.token_embedding.", "encoder.layers.0.self_attn.")
_OPENCLIP = ("transformer.resblocks.", "token_embedding.", "ln_final.")
_T5 = ("shared.", "encoder.block.", "encoder.embed_tokens.")
_QWEN3 = ("model.layers.0.self_attn.q_norm.", "layers.0.self_attn.q_norm.")
_MISTRAL = (*(f"{prefix}layers." for prefix in keymaps_flux2.MISTRAL_PREFIXES), "model.embed_tokens.")

_DENOISER = ("model.diffusion_model.", "diffusion_model.", "")
_FOLDER = ("transformer.", "")
_CLIP_PREFIXES = (
    "cond_stage_model.transformer.",
    "cond_stage_model.1.transformer.",
    "conditioner.embedders.0.transformer.",
    "text_encoders.clip_l.transformer.",
    "text_encoders.clip_g.transformer.",
    "text_encoders.clip_h.transformer.",
)
_OPENCLIP_PREFIXES = ("cond_stage_model.model.", "conditioner.embedders.0.model.", "conditioner.embedders.1.model.")
_T5_PREFIXES = ("text_encoders.t5xxl.transformer.", "text_encoder_2.", "text_encoder_3.", "text_encoder.", "")
_LLM_PREFIXES = (
    "text_encoders.qwen3_4b.transformer.",
    "text_encoders.qwen3_8b.transformer.",
    "text_encoders.llm.",
    "text_encoder.",
    "",
)
_MISTRAL_PREFIXES = ("text_encoders.mistral3_24b.transformer.", *_LLM_PREFIXES[2:])

# In this order; the first place of a component that has a witness is taken. "clip" is "clip_g" where it is bigG.
PLACES = (
    *_places("controlnet", "ldm", ("control_model.",), _LDM_UNET, _same),
    *_places("controlnet", "ldm", ("",), ("input_hint_block.",), _same),
    *_places("controlnet", "diffusers", ("",), ("controlnet_cond_embedding.",), _diffusers_controlnet),
    *_places("unet", "ldm", _DENOISER[:2], _LDM_UNET, _ldm_unet),
    *_places("unet", "diffusers", ("model.diffusion_model.", "unet."), _DIFFUSERS_UNET, _diffusers_unet),
    *_places("unet", "ldm", ("",), _LDM_UNET, _ldm_unet),
    *_places("unet", "diffusers", ("",), _DIFFUSERS_UNET, _diffusers_unet),
    *_places("chroma-radiance", "original", _DENOISER, ("nerf_image_embedder.", "nerf_blocks."), _flux),
    *_places("chroma", "diffusers", _FOLDER, ("distilled_guidance_layer.layers.0.linear_1.",), _diffusers_chroma),
    *_places("chroma", "original", _DENOISER, ("distilled_guidance_layer.",), _flux),
    *_places("flux2", "diffusers", _FOLDER, ("double_stream_modulation_img.linear.",), _diffusers_flux2),
    *_places("flux2", "original", _DENOISER, ("double_stream_modulation_img.",), _flux),
    *_places("flux", "original", _DENOISER, ("double_blocks.", "single_blocks."), _flux),
    *_places("flux", "diffusers", _FOLDER, ("single_transformer_blocks.",), _diffusers_flux),
    *_places("mmdit", "original", _DENOISER, ("joint_blocks.",), _same),
    *_places("mmdit", "diffusers", _FOLDER, ("pos_embed.proj.",), _diffusers_mmdit),
    *_places("zimage", "diffusers", ("model.diffusion_model.", *_FOLDER), ("all_x_embedder.",), _split_zimage),
    *_places("zimage", "original", _DENOISER, ("cap_embedder.", "noise_refiner."), _same),
    *_places("flux2-vae", "original", ("first_stage_model.", "vae.", ""), ("bn.running_mean",), _any_flux2_vae),
    *_places("vae", "ldm", ("first_stage_model.",), _LDM_VAE, _vae),
    *_places("vae", "diffusers", ("first_stage_model.", "vae."), _DIFFUSERS_VAE, _diffusers_vae),
    *_places("vae", "ldm", ("vae.", ""), _LDM_VAE, _vae),
    *_places("vae", "diffusers", ("",), _DIFFUSERS_VAE, _diffusers_vae),
    *_places("tae", "original", ("tae.", ""), ("encoder.1.conv.", "decoder.3.conv."), _same),
    *_places("tae", "original", ("",), ("1.conv.0.",), _tae_encoder),
    *_places("tae", "original", ("",), ("1.weight",), _tae_decoder),
    *_places(
        "tae",
        "diffusers",
        ("first_stage_model.", "tae.", ""),
        ("decoder.layers.", "encoder.layers.0.weight"),
        _diffusers_tae,
    ),
    *_places("clip", "ldm", _CLIP_PREFIXES, _CLIP, _clip),
    *_places("clip", "ldm", _OPENCLIP_PREFIXES, _OPENCLIP, _openclip),
    *_places("clip", "diffusers", ("text_encoder.", "text_encoder_2.", ""), _CLIP, _clip),
    *_places("clip", "ldm", ("",), _OPENCLIP, _openclip),
    *_places("t5", "transformers", _T5_PREFIXES, _T5, _t5),
    *_places("t5", "llama.cpp", ("",), ("enc.blk.",), _gguf_t5),
    *_places("qwen3", "transformers", _LLM_PREFIXES, _QWEN3, _qwen3),
    *_places("qwen3", "llama.cpp", ("",), ("blk.0.attn_q_norm.",), _gguf_qwen3),
    *_places(
        "mistral",
        "transformers",
        _MISTRAL_PREFIXES,
        _MISTRAL,
        _mistral,
    ),
    *_places("mistral", "llama.cpp", ("",), ("blk.0.attn_q.",), _gguf_mistral),
    *_places("esrgan", "old", ("",), ("RRDB_trunk.",), _named_esrgan),
    *_places("esrgan", "original", ("",), ("conv_first.", "body.0.rdb1."), _same),
    *_places("esrgan", "numbered", ("",), ("model.1.sub.",), _numbered_esrgan),
)
