"""Measure one step of any family's denoiser.

No weights are cached between steps: they stay in the file and are expanded layer by layer, so that the process's
peak memory is what a single step needs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from refsd.bench import BenchRequest
from refsd.golden.recipe import Recipe, realize
from refsd.networks.component import POSITION
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32

# component -> image pixels along a side of one latent pixel; 8 for the others
PIXELS = {"chroma-radiance": 1, "flux2": 16}
# component -> text tokens of sd-cli's prompt
TOKENS = {"unet": 77, "mmdit": 154, "zimage": 32}
LAYERS = 2  # pictures of a model that draws several at once, frames of a video, steps of its sound
# component -> timestep, and strength of guidance where it is embedded; 0.5 for the others
TIMES = {"unet": 500.0, "mmdit": 500.0, "wan": 500.0}


def inputs(component: str, m, side: int, tokens: int) -> dict[str, np.ndarray]:
    """Make recipe inputs for one item. Raises BadInput if `side` is no multiple of the latent pixel's size."""
    from refsd.components import COMPONENTS

    arguments, fits = COMPONENTS[component].arguments, COMPONENTS[component].fits(m)
    pixels = PIXELS.get(component, 8)
    if side % pixels:
        raise BadInput(f"--side {side}: expected a multiple of {pixels}")
    sizes = {"N": 1, "H": side // pixels, "W": side // pixels, "J": tokens, "T": LAYERS, "F": LAYERS, "2": 2}
    sizes |= {letter: fit.n for letter, fit in fits.items() if letter not in sizes}
    given = {}
    for name, argument in arguments.items():
        if argument.optional and (name not in fits or not fits[name].holds(1) or fits[name].holds(0)):
            continue
        if argument[:2] == ("N", POSITION):
            given[name] = np.array([TIMES.get(component, 0.5)])
        else:
            shape = tuple(sizes[letter] for letter in argument.shape.split())
            given[name] = realize(Recipe(shape), f"bench {name}").values()
    return given


def refsd_step(request: BenchRequest) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """Prepare refsd's step. -> (row -> function that runs the step, facts about the model for the table)"""
    from refsd.components import forward, load, resolve
    from refsd.weights import open_checkpoint

    checkpoint = open_checkpoint(request.model, request.parts)
    name = resolve(checkpoint, "diffusion")
    m, params = load(checkpoint, name, Arithmetic(FLOAT32))
    values = inputs(name, m, request.side, request.tokens or TOKENS.get(name, 256))
    shape = "x".join(map(str, values["x"].shape[1:]))
    about = {"x": shape, "tokens of text": values["context"].shape[1]}
    return {row_name(request.side): lambda: forward(name, m, values, params)}, about


def row_name(side: int) -> str:
    return f"denoiser's step, {side}x{side} pixels"


def sd_cli_files(request: BenchRequest) -> list[str]:
    """Name the same files for sd-cli; a file with only a denoiser goes to --diffusion-model instead of -m."""
    from refsd.weights.checkpoint import survey

    named = [word for flag, file in request.parts.items() for word in (flag, str(file))]
    if request.model is None:
        return named
    alone = len(survey(request.model).components) == 1
    return ["--diffusion-model" if alone else "-m", str(request.model), *named]
