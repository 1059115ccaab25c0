"""A picture's way from a prompt to pixels, with everything that was computed on it, by name and in order.

tokens.cond.clip  [J]           ids, and tokens.cond.weights [J], of CLIP's chunks; tokens.uncond...
cond, cond.y, cond.mask         what the network is conditioned on; uncond, ...
sigmas            [steps]       noise levels at which the steps begin
noise             [1, C, h, w]  of the seed
steps.{i}.x                     latents before step i; steps.{i}.denoised
calls.{k}.x, .timesteps         what the network is given at call k; .cond, .uncond: what it answers
latent, image                   the end, and the picture, -1..1
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.engines.dump.engine import read_dump
from refsd.numerics.errors import BadInput
from refsd.pipelines import txt2img
from refsd.pipelines.initial_latent import InitialLatent, initial_latent
from refsd.pipelines.loaded_component import LoadedComponent
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.plan import Plan
from refsd.pipelines.prompts import CLIP

Tensors = dict[str, np.ndarray]
_FIRST = "0."  # of a file of `refsd txt2img --taps`, the first picture's tensors
_STEP_SIGMA = re.compile(r"steps\.(\d+)\.sigma")


class PictureRun(NamedTuple):
    """A walk of the reference. conditioning, start: what sampling began with"""

    plan: Plan
    tensors: Tensors
    conditioning: txt2img.Conditioning
    start: InitialLatent


class _HeardEncoder(LoadedComponent):
    """A text encoder that keeps the ids that it is given."""

    heard: list[np.ndarray]

    def __call__(self, inputs, source, also=False, **params):
        self.heard.append(np.ravel(inputs["input_ids"]))
        return super().__call__(inputs, source, also, **params)


def run_picture(
    pipe: Pipeline,
    plan: Plan,
    conditioning: txt2img.Conditioning | None = None,
    start: InitialLatent | None = None,
) -> PictureRun:
    """Draw the plan's first picture.

    conditioning, start: in place of those of the plan
    """
    tensors: Tensors = {}
    if conditioning is None:
        conditioning, tensors = encode(pipe, plan)
    start = initial_latent(pipe, plan, plan.seeds[0]) if start is None else start

    def listen(name: str, array: np.ndarray) -> None:
        tensors[name] = np.array(array)

    latent = txt2img.sample(pipe, plan, conditioning, plan.seeds[0], listener=listen, start=start)
    listen("image", txt2img.decode(pipe, latent, plan.tiling, plan.circular))
    return PictureRun(plan, in_order(tensors), conditioning, start)


def encode(pipe: Pipeline, plan: Plan) -> tuple[txt2img.Conditioning, Tensors]:
    """Both prompts' conditioning, with the tokens on the way to it."""
    texts, tensors = {}, {}
    for which in ("cond", "uncond"):
        negative = which == "uncond"
        if negative and not plan.guided:
            continue
        heard = {name: _HeardEncoder(*encoder) for name, encoder in pipe.encoders.items()}
        for encoder in heard.values():
            encoder.heard = []
        texts[which] = txt2img.encode_prompt(pipe._replace(encoders=heard), plan, negative)
        ids = {name: np.concatenate(encoder.heard) for name, encoder in heard.items() if encoder.heard}
        tensors |= {f"tokens.{which}.{name}": row for name, row in ids.items()}
        clip = next((row for name, row in ids.items() if name in CLIP), None)
        if clip is not None:
            card, prompt = plan.convention.prompt, plan.negative_prompt if negative else plan.prompt
            chunks = card.chunk(pipe.tokenizers.clip(), card.parse(prompt))
            tensors[f"tokens.{which}.weights"] = np.concatenate([chunk.weights for chunk in chunks])[: len(clip)]
    conditioning = txt2img.Conditioning(texts["cond"], texts.get("uncond"))
    return conditioning, tensors | conditioning.tensors()


def read_picture(path: Path) -> Tensors:
    """The first picture in a file of the names above, as `refsd txt2img --taps` writes it. Raises BadInput."""
    tensors = {name.removeprefix(_FIRST): y for name, y in read_dump(path).items()}
    if not {"cond", "noise", "latent", "image", "calls.0.x", "steps.0.x"} & tensors.keys():
        some = ", ".join(list(tensors)[:3])
        raise BadInput(f"{path} has {some}: expected cond, 0.noise, 0.steps.0.x, ..., as of `refsd txt2img --taps`")
    return in_order(tensors)


def in_order(tensors: Mapping[str, np.ndarray]) -> Tensors:
    """In the order of computation, each step's sigma joined to `sigmas`; what follows from the rest is left out."""
    levels = {
        int(found[1]): y for name, y in tensors.items() if (found := _STEP_SIGMA.fullmatch(name)) and y.size == 1
    }
    kept = {name: y for name, y in tensors.items() if not name.endswith((".eps", ".sigma"))}
    if levels:
        kept["sigmas"] = np.array([levels[i].item() for i in sorted(levels)], np.float64)
    return {name: kept[name] for name in sorted(kept, key=lambda name: _rank(name, list(kept)))}


def _rank(name: str, names: list[str]) -> tuple[int, int]:
    """tokens, conditioning, sigmas, noise, the latents at the start; then as they came."""
    groups = ("tokens.", ("cond", "uncond"), "sigmas", "noise", "steps.0.x")
    group = next((i for i, begins in enumerate(groups) if name.startswith(begins)), len(groups))
    last = len(groups) + ("latent", "image").index(name) + 1 if name in ("latent", "image") else group
    return last, names.index(name)


_TITLES = (
    (r"tokens\.(\w+)\.weights", r"weights of the tokens of \1"),
    (r"tokens\.(\w+)\.(\w+)", r"token ids of \1 for \2"),
    (r"(cond|uncond)\.y", r"pooled conditioning, \1"),
    (r"(cond|uncond)\.mask", r"mask of the conditioning, \1"),
    (r"(cond|uncond)", r"conditioning, \1"),
    (r"sigmas", "noise levels"),
    (r"noise", "noise of the seed"),
    (r"steps\.0\.x", "initial latent"),
    (r"steps\.(\d+)\.x", r"latent before step \1"),
    (r"steps\.(\d+)\.denoised", r"denoised at step \1"),
    (r"calls\.(\d+)\.x", r"network's input at call \1"),
    (r"calls\.(\d+)\.timesteps", r"timestep at call \1"),
    (r"calls\.(\d+)\.(\w+)", r"network's output at call \1, \2"),
    (r"latent", "final latent"),
    (r"image", "pixels"),
)


def title(name: str) -> str:
    """What a tensor of a picture's way is, in words."""
    return next((re.sub(pattern, words, name) for pattern, words in _TITLES if re.fullmatch(pattern, name)), name)
