"""Where a file keeps a component: a prefix, names that give it away, and the table to the original's names."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from refsd.weights import keymaps, keymaps_chroma, keymaps_mmdit, keymaps_text, keymaps_zimage
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


def _diffusers_unet(names: Collection[str]) -> Keymap:
    places = {tuple(name.split(".", 3)[:3]) for name in names}
    levels = count(names, "down_blocks.", 4)
    attention = [n for n in range(levels) if ("down_blocks", str(n), "attentions") in places]
    return keymaps.unet(levels, count(names, "down_blocks.0.resnets.", 2), attention)


def _diffusers_vae(names: Collection[str]) -> Keymap:
    return keymaps.vae(count(names, "encoder.down_blocks.", 4), count(names, "encoder.down_blocks.0.resnets.", 2))


def _openclip(names: Collection[str]) -> Keymap:
    return OpenCLIP(count(names, "transformer.resblocks.", 24))


def _diffusers_flux(names: Collection[str]) -> Keymap:
    return keymaps.flux(count(names, "transformer_blocks.", 19), count(names, "single_transformer_blocks.", 38))


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


def _places(
    component: str,
    layout: str,
    prefixes: Iterable[str],
    witnesses: tuple[str, ...],
    keymap: Callable[[Collection[str]], Keymap],
) -> list[Place]:
    return [Place(component, layout, prefix, witnesses, keymap) for prefix in prefixes]


_LDM_UNET = ("input_blocks.", "middle_block.", "output_blocks.")
_DIFFUSERS_UNET = ("down_blocks.", "mid_block.", "up_blocks.")
_LDM_VAE = ("encoder.down.", "encoder.mid.", "decoder.up.", "decoder.mid.")
_DIFFUSERS_VAE = ("encoder.down_blocks.", "encoder.mid_block.", "decoder.up_blocks.", "decoder.mid_block.")
_CLIP = ("text_model.", "embeddings.token_embedding.", "encoder.layers.0.self_attn.")
_OPENCLIP = ("transformer.resblocks.", "token_embedding.", "ln_final.")
_FLUX = ("double_blocks.", "single_blocks.")
_CHROMA = ("distilled_guidance_layer.",)
_DIFFUSERS_FLUX = ("single_transformer_blocks.",)
_DIFFUSERS_CHROMA = ("distilled_guidance_layer.layers.0.linear_1.",)
_DIFFUSERS_MMDIT = ("pos_embed.proj.",)
_ZIMAGE = ("x_embedder.", "cap_embedder.")
_SPLIT_ZIMAGE = ("all_x_embedder.",)
_T5 = ("shared.", "encoder.block.", "encoder.embed_tokens.")
_QWEN3 = ("model.layers.", "model.embed_tokens.")
_BARE_QWEN3 = ("embed_tokens.", "layers.0.self_attn.")

_DENOISER = ("model.diffusion_model.", "")
_CLIP_PREFIXES = (
    "cond_stage_model.transformer.",
    "conditioner.embedders.0.transformer.",
    "text_encoders.clip_l.transformer.",
    "text_encoders.clip_g.transformer.",
    "text_encoders.clip_h.transformer.",
)
_OPENCLIP_PREFIXES = ("cond_stage_model.model.", "conditioner.embedders.0.model.", "conditioner.embedders.1.model.")
_T5_PREFIXES = ("text_encoders.t5xxl.transformer.", "text_encoder_2.", "text_encoder_3.", "text_encoder.", "")
_QWEN3_PREFIXES = ("text_encoders.qwen3_4b.transformer.", "text_encoders.llm.", "text_encoder.", "")


def _clip(_: Collection[str]) -> Keymap:
    return keymaps.clip()


def _vae(_: Collection[str]) -> Keymap:
    return keymaps.vae_original()


# In this order; the first place of a component that has a witness is taken. "clip" is "clip_g" where it is bigG.
PLACES = (
    *_places("unet", "ldm", _DENOISER[:1], _LDM_UNET, _same),
    *_places("unet", "diffusers", ("model.diffusion_model.", "unet."), _DIFFUSERS_UNET, _diffusers_unet),
    *_places("unet", "ldm", ("",), _LDM_UNET, _same),
    *_places("unet", "diffusers", ("",), _DIFFUSERS_UNET, _diffusers_unet),
    *_places("chroma", "diffusers", ("transformer.", ""), _DIFFUSERS_CHROMA, _diffusers_chroma),
    *_places("chroma", "original", _DENOISER, _CHROMA, _same),
    *_places("flux", "original", _DENOISER, _FLUX, _same),
    *_places("flux", "diffusers", ("transformer.", ""), _DIFFUSERS_FLUX, _diffusers_flux),
    *_places("mmdit", "original", _DENOISER, ("joint_blocks.",), _same),
    *_places("mmdit", "diffusers", ("transformer.", ""), _DIFFUSERS_MMDIT, _diffusers_mmdit),
    *_places("zimage", "diffusers", ("model.diffusion_model.", "transformer.", ""), _SPLIT_ZIMAGE, _split_zimage),
    *_places("zimage", "original", _DENOISER, _ZIMAGE, _same),
    *_places("vae", "ldm", ("first_stage_model.",), _LDM_VAE, _vae),
    *_places("vae", "diffusers", ("first_stage_model.", "vae."), _DIFFUSERS_VAE, _diffusers_vae),
    *_places("vae", "ldm", ("vae.", ""), _LDM_VAE, _vae),
    *_places("vae", "diffusers", ("",), _DIFFUSERS_VAE, _diffusers_vae),
    *_places("clip", "ldm", _CLIP_PREFIXES, _CLIP, _clip),
    *_places("clip", "ldm", _OPENCLIP_PREFIXES, _OPENCLIP, _openclip),
    *_places("clip", "diffusers", ("text_encoder.", "text_encoder_2.", ""), _CLIP, _clip),
    *_places("clip", "ldm", ("",), _OPENCLIP, _openclip),
    *_places("t5", "transformers", _T5_PREFIXES, _T5, lambda _: keymaps_text.t5()),
    *_places("t5", "llama.cpp", ("",), ("enc.blk.",), _gguf_t5),
    *_places("qwen3", "transformers", _QWEN3_PREFIXES, _QWEN3 + _BARE_QWEN3, lambda _: keymaps_text.qwen3()),
    *_places("qwen3", "llama.cpp", ("",), ("blk.",), _gguf_qwen3),
)
