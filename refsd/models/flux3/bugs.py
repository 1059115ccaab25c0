"""Functions of FLUX.3's model with bugs that a port, or a page shared with FLUX.2, may have."""

import numpy as np

from refsd.golden.judge import Mutant
from refsd.kernels.attention import boolean_mask
from refsd.models import flux3
from refsd.module import Module
from refsd.networks.bugs import Change, exchanging, replacing, rows_and_columns_swapped, with_arguments, with_result

_CONDITIONING, _ATTENTION, _PICTURE = flux3.conditioning, flux3.rotary_attention, flux3.picture_ids
_STAGES = (("early_stream_modulations.", "single_stream_modulations."),)


def _references_on_the_first_axis(x, word=0):
    """FLUX.2's positions: the k-th reference stands at 10 k on the first axis."""
    return _PICTURE(x) + np.array([-10 * word, 0, 0, 0])


def _at_the_pictures_time(*modes: str):
    def conditioning(m: Module, timesteps, target_timesteps):
        vec = _CONDITIONING(m, timesteps, target_timesteps)
        return vec | dict.fromkeys(modes, vec["image"])

    return conditioning


def _zero_not_embedded(m: Module, timesteps, target_timesteps):
    vec = _CONDITIONING(m, timesteps, target_timesteps)
    return vec | {mode: np.zeros_like(vec[mode]) for mode in ("txt", "image_cond")}


def _target_of_the_picture(m: Module, timesteps, target_timesteps):
    vec = _CONDITIONING(m, timesteps, target_timesteps)
    still = flux3.mlp_embedder(
        m["time_in"], m.timestep_embedding(0 * timesteps, m.shape("time_in.in_layer.weight")[1])
    )
    return vec | {"txt": still, "image_cond": still}


def _no_target(name: str, values):
    return np.zeros_like(values) if name == "ref_time_in.out_layer.weight" else None


def _step_of_no_length(inputs):
    return {**inputs, "target_timesteps": inputs["timesteps"]} if "target_timesteps" in inputs else None


def _picture_embeds_all(name: str):
    return "emb_in.image.weight" if name == "emb_in.image_cond.weight" else None


def _blocks_of_the_picture(name: str):
    return name.replace(".image_cond.", ".image.") if name.startswith("content_mode_blocks.image_cond.") else None


def _as_the_picture(mods):
    return [mods[1]] * len(mods) if len(mods) > 1 else mods


def _in_sequence(m: Module, streams, mods, angle, head_dim, eps=flux3.EPS):
    """Add the attention's output before the MLP reads the tokens."""
    pairs = [*zip(streams, mods, strict=True)]
    h = np.concatenate([m.adaptive_layer_norm(x, mod.shift, mod.scale, eps) for x, mod in pairs], axis=1)
    h = m.add(h, flux3.attention(m, h, angle, head_dim, eps))
    parts = np.split(flux3.mlp(m, h), np.cumsum([x.shape[1] for x in streams])[:-1], axis=1)
    return tuple(m.gated_add(x, part, mod.gate) for (x, mod), part in zip(pairs, parts, strict=True))


def _last_word_masked(m: Module, q, k, v, angle):
    """Ignore the last word, as if it were padding. The picture's first token stands at 0, as the first word."""
    if m.prefix.startswith("content"):
        return _ATTENTION(m, q, k, v, angle)
    at_zero = np.flatnonzero((angle[0] == 0).all(axis=1))
    words = at_zero[1] if len(at_zero) > 1 else k.shape[1]
    seen = np.arange(k.shape[1]) != words - 1
    return _ATTENTION(m, q, k, v, angle, boolean_mask(seen[None, None, None], np.float64))


def _value_activated(m: Module, h):
    return m.linear("mlp_out", m.swiglu(m.linear("mlp_in", h), second_gates=True))


BUGS = (
    *replacing(
        flux3,
        (
            "FLUX.3's rows and columns are whole steps apart, not half",
            "picture_ids",
            with_result(_PICTURE, lambda ids: ids * np.array([1, 2, 2, 1])),
        ),
        ("FLUX.3's rows and columns are swapped", "picture_ids", rows_and_columns_swapped(_PICTURE)),
        (
            "FLUX.3's references stand at words 1, 2, ..., not -1, -2, ...",
            "picture_ids",
            with_arguments(_PICTURE, word=lambda k: -k),
        ),
        (
            "FLUX.3's references have the picture's positions",
            "picture_ids",
            with_arguments(_PICTURE, word=lambda k: 0),
        ),
        ("FLUX.3's references stand at 10, 20, ... as FLUX.2's", "picture_ids", _references_on_the_first_axis),
        ("FLUX.3's words are all at 0", "text_ids", with_result(flux3.text_ids, np.zeros_like)),
        ("FLUX.3's text has the picture's time, not 0", "conditioning", _at_the_pictures_time("txt")),
        ("FLUX.3's references have the picture's time, not 0", "conditioning", _at_the_pictures_time("image_cond")),
        ("FLUX.3's text and references have no time, not time 0", "conditioning", _zero_not_embedded),
        ("FLUX.3's picture has time 0", "conditioning", with_arguments(_CONDITIONING, timesteps=np.zeros_like)),
        ("FLUX.3's time of the step's end reaches the picture alone", "conditioning", _target_of_the_picture),
        (
            "FLUX.3's joint blocks modulate all tokens as the picture's",
            "parallel_block",
            with_arguments(flux3.parallel_block, mods=_as_the_picture),
        ),
        ("FLUX.3's MLP follows the attention", "parallel_block", _in_sequence),
        ("FLUX.3's MLP activates the value, not the gate", "mlp", _value_activated),
        ("FLUX.3's attention ignores the padding of the text", "rotary_attention", _last_word_masked),
    ),
    Mutant("FLUX.3's time of the step's end is not embedded", Change(revalue=_no_target)),
    Mutant("FLUX.3's time of the step's end is that of its beginning", Change(inputs=_step_of_no_length)),
    Mutant("FLUX.3's modulations of a mode's own and of the joint blocks are swapped", exchanging(*_STAGES)),
    Mutant("FLUX.3's modulations of text and picture are swapped", exchanging((".txt.lin", ".image.lin"))),
    Mutant(
        "FLUX.3's modulations of picture and references are swapped", exchanging((".image.lin", ".image_cond.lin"))
    ),
    Mutant("FLUX.3's references are embedded as the picture", Change(rename=_picture_embeds_all)),
    Mutant("FLUX.3's references run through the picture's blocks", Change(rename=_blocks_of_the_picture)),
)
