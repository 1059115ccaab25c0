"""Random small configurations of diffusers' and transformers' models, run there and in refsd, in float64.

    python -P tests/peers/model_configs.py --count 80 --seed 7 [--only flux]

Every third configuration has one field that refsd may not compute: then it may be refused, in a line that names
the field or tensors. Anything else must agree to 1e-12 (relative L2). Exit code 1 if something does not.
"""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import diffusers
import numpy as np
import torch
import transformers
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline
from diffusers.pipelines.flux2.pipeline_flux2 import Flux2Pipeline

from refsd.components import forward, load
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.weights import open_checkpoint

sys.path[:0] = [str(Path(__file__).parent)]
from float64_peers import distance, float64_throughout, redraw  # noqa: E402

WITHIN = 1e-12
_F64 = Arithmetic(FLOAT64)


class Drawn(NamedTuple):
    """
    component: refsd's name
    folder:    of a pipeline, in which the peer is saved
    fields:    of the peer's config
    inputs:    of the component
    peer:      the model, made of its fields
    answer:    the peer -> its output, in the place of the component's first
    params:    of the component
    """

    component: str
    folder: str
    fields: dict[str, Any]
    inputs: dict[str, np.ndarray]
    peer: Callable[[], torch.nn.Module]
    answer: Callable[[Any], torch.Tensor]
    params: dict[str, Any]


class Draw:
    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def of(self, *choices):
        return choices[self.number(0, len(choices) - 1)]

    def array(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape)

    def times(self, most: float) -> np.ndarray:
        return self.rng.uniform(0, most, 2)

    def sides(self, multiple: int) -> tuple[int, int]:
        """H and W, never the same."""
        h = self.number(1, 5)
        w = h + self.of(1, 2, 3)
        return tuple(multiple * n for n in self.of((h, w), (w, h)))

    def ids(self, vocab: int, tokens: int) -> np.ndarray:
        return self.rng.integers(0, vocab, (2, tokens))

    def mask(self, tokens: int) -> np.ndarray | None:
        if self.number(0, 1):
            return None
        return (np.arange(tokens) < self.rng.integers(1, tokens + 1, (2, 1))).astype(np.int64)


def _t(x) -> Any:
    return None if x is None else torch.from_numpy(x)


def sd3(d: Draw, odd: bool) -> Drawn:
    heads, head_dim, layers, patch = d.number(1, 4), d.of(4, 8, 12, 20), d.number(0, 4), d.of(1, 2, 2, 4)
    C = d.number(1, 6)
    fields = {
        "sample_size": d.number(4, 12),
        "patch_size": patch,
        "in_channels": C,
        "out_channels": C,
        "num_layers": layers,
        "attention_head_dim": head_dim,
        "num_attention_heads": heads,
        "joint_attention_dim": d.number(3, 20),
        "caption_projection_dim": heads * head_dim,
        "pooled_projection_dim": d.number(3, 20),
        "pos_embed_max_size": d.number(8, 14),
        "dual_attention_layers": [i for i in range(layers) if d.number(0, 2) == 0],
        "qk_norm": d.of(None, "rms_norm"),
    }
    if odd:
        fields |= d.of({"qk_norm": "layer_norm"}, {"out_channels": C + 1})
    H, W = d.sides(patch)
    x, context = d.array(2, C, H, W), d.array(2, d.number(1, 9), fields["joint_attention_dim"])
    y, t = d.array(2, fields["pooled_projection_dim"]), d.times(1000)
    return Drawn(
        "mmdit", "transformer", fields, {"x": x, "timesteps": t, "context": context, "y": y},
        lambda: diffusers.SD3Transformer2DModel(**fields),
        lambda peer: peer(_t(x), _t(context), _t(y), _t(t)).sample, {},
    )  # fmt: skip


def _flux_ids(H: int, W: int):
    return FluxPipeline._prepare_latent_image_ids(None, H // 2, W // 2, None, torch.float64)  # type: ignore[arg-type]


def _flux_answer(peer, x, *arguments, **more) -> torch.Tensor:
    H, W = x.shape[2:]
    y = peer(FluxPipeline._pack_latents(_t(x), *x.shape), *arguments, **more).sample
    return FluxPipeline._unpack_latents(y[:, : H * W // 4], 8 * H, 8 * W, 8)


def flux(d: Draw, odd: bool) -> Drawn:
    C, extra = d.number(1, 4), d.of(0, 0, 3)
    fields = {
        "in_channels": 4 * (C + extra),
        "out_channels": 4 * C,
        "num_layers": d.number(0, 3),
        "num_single_layers": d.number(0, 3),
        "num_attention_heads": d.number(1, 3),
        "joint_attention_dim": d.number(3, 20),
        "pooled_projection_dim": d.number(3, 20),
        "guidance_embeds": bool(d.number(0, 1)),
    }
    if odd:
        fields |= d.of(
            {"axes_dims_rope": [32, 48, 48]},
            {"attention_head_dim": 64, "axes_dims_rope": [16, 24, 24]},
            {"patch_size": 2},
        )
    H, W = d.sides(2)
    J = d.number(1, 9)
    x, context = d.array(2, C + extra, H, W), d.array(2, J, fields["joint_attention_dim"])
    y, t = d.array(2, fields["pooled_projection_dim"]), d.times(1)
    inputs = {"x": x, "timesteps": t, "context": context, "y": y}
    if fields["guidance_embeds"]:
        inputs["guidance"] = d.times(5)
    return Drawn(
        "flux", "transformer", fields, inputs, lambda: diffusers.FluxTransformer2DModel(**fields),
        lambda peer: _flux_answer(
            peer, x, _t(context), _t(y), _t(t), _flux_ids(H, W), torch.zeros(J, 3), _t(inputs.get("guidance"))
        ), {},
    )  # fmt: skip


def chroma(d: Draw, odd: bool) -> Drawn:
    C = d.number(1, 4)
    fields = {
        "in_channels": 4 * C,
        "num_layers": d.number(0, 3),
        "num_single_layers": d.number(0, 3),
        "num_attention_heads": d.number(1, 2),
        "joint_attention_dim": d.number(3, 20),
        "approximator_num_channels": 64,
        "approximator_hidden_dim": d.number(5, 40),
        "approximator_layers": d.number(1, 4),
    }
    if odd:
        fields |= d.of(
            {"approximator_num_channels": 32},
            {"axes_dims_rope": [32, 48, 48]},
            {"out_channels": 4 * C + 4},
        )
    H, W = d.sides(2)
    J = d.number(2, 9)
    x, context, t = d.array(2, C, H, W), d.array(2, J, fields["joint_attention_dim"]), d.times(1)
    mask = d.mask(J)
    inputs = {"x": x, "timesteps": t, "context": context} | ({} if mask is None else {"context_mask": mask})

    def made():
        peer = diffusers.ChromaTransformer2DModel(**fields)
        # torch's RMSNorm takes the dtype's own epsilon when given none; the original has 1e-6.
        for norm in peer.distilled_guidance_layer.norms:
            norm.eps = 1e-6
        return peer

    seen = None if mask is None else torch.from_numpy(np.concatenate([mask, np.ones((2, H * W // 4))], 1) > 0)
    return Drawn(
        "chroma", "transformer", fields, inputs, made,
        lambda peer: _flux_answer(peer, x, _t(context), _t(t), _flux_ids(H, W), torch.zeros(J, 3), seen), {},
    )  # fmt: skip


def zimage(d: Draw, odd: bool) -> Drawn:
    heads, C = d.number(1, 3), d.number(1, 6)
    fields = {
        "in_channels": C,
        "dim": 128 * heads,
        "n_layers": d.number(0, 3),
        "n_refiner_layers": d.number(0, 3),
        "n_heads": heads,
        "n_kv_heads": heads,
        "cap_feat_dim": d.number(3, 30),
        "axes_lens": [d.number(100, 300), 32, 32],
    }
    if odd:
        fields |= d.of(
            {"norm_eps": 1e-6},
            {"qk_norm": False},
            {"rope_theta": 100.0},
            {"t_scale": 1.0},
            {"axes_dims": [64, 32, 32]},
            {"all_patch_size": [1], "all_f_patch_size": [1]},
            {"siglip_feat_dim": 12},
        )
    H, W = d.sides(2)
    x, t = d.array(2, C, H, W), d.times(1)
    lengths = [d.number(1, 40) for _ in range(2)]
    context = d.array(2, max(lengths), fields["cap_feat_dim"])
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)

    def answer(peer):
        captions = [_t(caption[:n]) for caption, n in zip(context, lengths, strict=True)]
        patch = {"patch_size": fields["all_patch_size"][0]} if "all_patch_size" in fields else {}
        return torch.stack(
            [item[:, 0] for item in peer([_t(i)[:, None] for i in x], _t(t), captions, **patch).sample]
        )

    return Drawn(
        "zimage", "transformer", fields, {"x": x, "timesteps": t, "context": context, "context_mask": mask},
        lambda: diffusers.ZImageTransformer2DModel(**fields), answer, {},
    )  # fmt: skip


def flux2(d: Draw, odd: bool) -> Drawn:
    C = 4 * d.number(1, 4)
    fields = {
        "in_channels": C,
        "num_layers": d.number(0, 3),
        "num_single_layers": d.number(0, 3),
        "num_attention_heads": d.number(1, 2),
        "joint_attention_dim": d.number(3, 20),
        "guidance_embeds": bool(d.number(0, 1)),
        "mlp_ratio": d.of(3.0, 3.0, 2.0, 1.5),
        "timestep_guidance_channels": d.of(256, 64, 32),
    }
    if odd:
        fields |= d.of(
            {"rope_theta": 10000},
            {"eps": 1e-5},
            {"axes_dims_rope": [16, 48, 32, 32]},
            {"attention_head_dim": 64, "axes_dims_rope": [16, 16, 16, 16]},
            {"out_channels": C + 4},
        )
    H, W = d.sides(1)
    x, context, t = d.array(2, C, H, W), d.array(2, d.number(1, 9), fields["joint_attention_dim"]), d.times(1)
    inputs = {"x": x, "timesteps": t, "context": context}
    if fields["guidance_embeds"]:
        inputs["guidance"] = d.times(5)

    def answer(peer):
        ids = Flux2Pipeline._prepare_latent_ids(_t(x))
        text = Flux2Pipeline._prepare_text_ids(_t(context))
        tokens = Flux2Pipeline._pack_latents(_t(x))
        y = peer(tokens, _t(context), _t(t), ids, text, _t(inputs.get("guidance"))).sample
        return Flux2Pipeline._unpack_latents_with_ids(y, ids)

    return Drawn(
        "flux2", "transformer", fields, inputs, lambda: diffusers.Flux2Transformer2DModel(**fields), answer, {}
    )


def _encoder(d: Draw, component, folder, make, fields, vocab, tokens, masks=True, **params) -> Drawn:
    ids, mask = d.ids(vocab, tokens), d.mask(tokens) if masks else None
    inputs = {"input_ids": ids} | ({} if mask is None else {"attention_mask": mask})

    def answer(peer):
        given = {} if mask is None else {"attention_mask": _t(mask)}
        return peer(_t(ids), **given).last_hidden_state

    return Drawn(component, folder, fields, inputs, lambda: make(fields).eval(), answer, params)


def t5(d: Draw, odd: bool) -> Drawn:
    shared = bool(d.number(0, 1))
    config, model = (
        (transformers.T5Config, transformers.T5EncoderModel)
        if shared
        else (transformers.UMT5Config, transformers.UMT5EncoderModel)
    )
    fields = {
        "vocab_size": d.number(20, 60),
        "d_model": d.number(8, 40),
        "d_kv": d.number(2, 16),
        "d_ff": d.number(5, 50),
        "num_heads": d.number(1, 5),
        "num_layers": d.number(1, 4),
        "feed_forward_proj": "gated-gelu",
    }
    if odd:
        fields |= d.of(
            {"feed_forward_proj": "relu"},
            {"feed_forward_proj": "gated-silu"},
            {"relative_attention_num_buckets": 16},
            {"relative_attention_max_distance": 20},
            {"layer_norm_epsilon": 1e-3},
        )
    made = lambda fields: model(config(**fields))
    return _encoder(d, "t5", "text_encoder", made, fields, fields["vocab_size"], d.number(1, 200))


def clip(d: Draw, odd: bool) -> Drawn:
    heads, vocab, positions = d.number(1, 5), d.number(20, 60), d.number(4, 30)
    fields = {
        "vocab_size": vocab,
        "hidden_size": heads * d.of(4, 6, 16, 64),
        "intermediate_size": d.number(5, 80),
        "num_hidden_layers": d.number(1, 4),
        "num_attention_heads": heads,
        "max_position_embeddings": positions,
        "hidden_act": d.of("quick_gelu", "gelu"),
        "bos_token_id": 0,
        "eos_token_id": vocab - 1,
        "pad_token_id": vocab - 1,
    }
    if odd:
        fields |= d.of({"layer_norm_eps": 1e-3}, {"hidden_act": "gelu_new"}, {"hidden_act": "relu"})
    make = lambda fields: transformers.CLIPTextModel(transformers.CLIPTextConfig(**fields))
    return _encoder(
        d, "clip", "text_encoder", make, fields, vocab, d.number(1, positions), masks=False, eos=vocab - 1
    )


def qwen3(d: Draw, odd: bool) -> Drawn:
    kv = d.number(1, 3)
    fields = {
        "vocab_size": d.number(20, 60),
        "hidden_size": d.number(8, 40),
        "intermediate_size": d.number(5, 60),
        "num_hidden_layers": d.number(1, 4),
        "num_attention_heads": kv * d.number(1, 3),
        "num_key_value_heads": kv,
        "head_dim": 2 * d.number(1, 20),
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": bool(d.number(0, 1)),
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if odd:
        fields |= d.of(
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}},
            {"rms_norm_eps": 1e-4},
            {"attention_bias": True},
            {"hidden_act": "gelu"},
            {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0},
        )
    make = lambda fields: transformers.Qwen3Model(transformers.Qwen3Config(**fields))
    return _encoder(d, "qwen3", "text_encoder", make, fields, fields["vocab_size"], d.number(1, 40))


FAMILIES = {f.__name__: f for f in (sd3, flux, chroma, zimage, flux2, t5, clip, qwen3)}


def verdict(family: str, seed: int, folder: Path) -> tuple[str, str]:
    """A configuration, run twice. -> "agrees", "refused" or "wrong", and what there is to say."""
    odd = seed % 3 == 2
    drawn = FAMILIES[family](Draw(seed), odd)
    with float64_throughout(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = drawn.peer()
        redraw(peer, seed)
        want = drawn.answer(peer)
        peer.save_pretrained(folder / drawn.folder)
    try:
        m, told = load(open_checkpoint(folder), drawn.component, _F64)
        out = forward(drawn.component, m, drawn.inputs, told | drawn.params)
    except BadInput as error:
        said = str(error).replace(str(folder), "")
        return "refused" if odd else "wrong", f"{said} of {drawn.fields}"
    off = distance(next(iter(out.values())), want)
    return "agrees" if off <= WITHIN else "wrong", f"{off:.1e} of {drawn.fields}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=80, help="configurations of all families together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=FAMILIES)
    options = parser.parse_args()
    families = [options.only] if options.only else list(FAMILIES)
    found: dict[str, int] = {}
    for i in range(options.count):
        family, seed = families[i % len(families)], 1000 * options.seed + i // len(families)
        with tempfile.TemporaryDirectory() as folder:
            word, said = verdict(family, seed, Path(folder))
        found[word] = found.get(word, 0) + 1
        print(f"{word:8} {family} {seed}: {said}", flush=True)
    print(", ".join(f"{n} {word}" for word, n in sorted(found.items())))
    sys.exit(1 if "wrong" in found else 0)


if __name__ == "__main__":
    main()
