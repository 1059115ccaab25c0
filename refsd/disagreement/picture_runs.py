"""Draw a picture and record every tensor from the prompt to the pixels, in the order of computation.

tokens.cond.clip  [J]           token ids of CLIP's chunks; tokens.cond.weights [J]; likewise tokens.uncond...
cond, cond.y, cond.mask         context, pooled vector and mask of the prompt; likewise uncond, ...
sigmas            [steps]       noise levels at which the steps begin
noise             [1, C, h, w]  the seed's noise
init              [1, C, h, w]  latent of the picture to start from, if there is one
steps.{i}.x                     latents before step i; steps.{i}.denoised
calls.{k}.x, .timesteps         the network's inputs at call k; .cond, .uncond: its outputs
latent, image                   the final latent; the picture, -1..1
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
_FIRST = "0."  # prefix of the first picture's tensors in a file of `refsd txt2img --taps`
_STEP_SIGMA = re.compile(r"steps\.(\d+)\.sigma")


class PictureRun(NamedTuple):
    """A picture drawn by the reference. conditioning, start: the conditioning and initial latent of the sampling"""

    plan: Plan
    tensors: Tensors
    conditioning: txt2img.Conditioning
    start: InitialLatent


class _HeardEncoder(LoadedComponent):
    """A text encoder that records its input ids in `heard`."""

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

    conditioning, start: replace those of the plan
    """
    tensors: Tensors = {}
    pipe = pipe.decoding_as(plan.convention)
    if conditioning is None:
        conditioning, tensors = encode(pipe, plan)
    start = initial_latent(pipe, plan, plan.seeds[0]) if start is None else start

    def listen(name: str, array: np.ndarray) -> None:
        tensors[name] = np.array(array)

    if start.latent is not None:
        listen("init", start.latent)
    latent = txt2img.sample(pipe, plan, conditioning, plan.seeds[0], listener=listen, start=start)
    listen("image", txt2img.decode(pipe, latent, plan.tiling, plan.circular))
    return PictureRun(plan, in_order(tensors), conditioning, start)


def encode(pipe: Pipeline, plan: Plan) -> tuple[txt2img.Conditioning, Tensors]:
    """Encode both prompts. -> the conditioning; tensors of the conditioning and its tokens, by name"""
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
        clip = next((row for name, row in ids.items() if name in CLIP), None)
        weights = {}
        if clip is not None:
            card, prompt = plan.convention.prompt, plan.negative_prompt if negative else plan.prompt
            chunks = card.chunk(pipe.tokenizers.clip(), card.parse(prompt))
            own = np.concatenate([chunk.weights for chunk in chunks])[: len(clip)]
            weights = {f"tokens.{which}.weights": own}
            # ComfyUI's rule of weights encodes an empty prompt too, behind the prompt.
            ids |= {name: row[: len(own)] for name, row in ids.items() if name in CLIP}
        tensors |= {f"tokens.{which}.{name}": row for name, row in ids.items()} | weights
    conditioning = txt2img.Conditioning(texts["cond"], texts.get("uncond"))
    return conditioning, tensors | conditioning.tensors()


def read_picture(path: Path) -> Tensors:
    """Read the first picture's tensors from a file of `refsd txt2img --taps`. Raises BadInput if it has none."""
    tensors = {name.removeprefix(_FIRST): y for name, y in read_dump(path).items()}
    if not {"cond", "noise", "latent", "image", "calls.0.x", "steps.0.x"} & tensors.keys():
        some = ", ".join(list(tensors)[:3])
        raise BadInput(f"{path} has {some}: expected cond, 0.noise, 0.steps.0.x, ..., as of `refsd txt2img --taps`")
    return in_order(tensors)


def in_order(tensors: Mapping[str, np.ndarray]) -> Tensors:
    """Sort tensors by the order of computation, join each step's sigma to `sigmas`, and drop the redundant eps."""
    levels = {
        int(found[1]): y for name, y in tensors.items() if (found := _STEP_SIGMA.fullmatch(name)) and y.size == 1
    }
    kept = {name: y for name, y in tensors.items() if not name.endswith((".eps", ".sigma"))}
    if levels:
        kept["sigmas"] = np.array([levels[i].item() for i in sorted(levels)], np.float64)
    return {name: kept[name] for name in sorted(kept, key=lambda name: _rank(name, list(kept)))}


def _rank(name: str, names: list[str]) -> tuple[int, int]:
    """Sort key: tokens, conditioning, sigmas, noise, initial latents; then the others as given; latent, image."""
    groups = ("tokens.", ("cond", "uncond"), "sigmas", "noise", "init", "steps.0.x")
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
    (r"init", "latent of the picture to start from"),
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
    """Describe a tensor by its name: "latent before step 3"."""
    return next((re.sub(pattern, words, name) for pattern, words in _TITLES if re.fullmatch(pattern, name)), name)
