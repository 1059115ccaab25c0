"""Measure one step of any family's denoiser, and Flux's two kinds of block at full width.

No weights are cached between steps: they stay in the file and are expanded layer by layer, so that the process's
peak memory is what a single step needs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from refsd.bench import BenchRequest
from refsd.bench.row import Absent
from refsd.golden.recipe import Recipe, realize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32

# component -> image pixels along a side of one latent pixel; 8 for the others
PIXELS = {"chroma-radiance": 1, "flux2": 16}
# component -> text tokens of sd-cli's prompt
TOKENS = {"unet": 77, "mmdit": 154, "zimage": 32}
LAYERS = 2  # pictures of a model that draws several at once
# component -> timestep; 0.5 for the others
TIMES = {"unet": 500.0, "mmdit": 500.0, "wan": 500.0}


def inputs(component: str, m, side: int, tokens: int) -> dict[str, np.ndarray]:
    """Make recipe inputs for one item. Raises BadInput if `side` is no multiple of the latent pixel's size."""
    from refsd.components import COMPONENTS

    arguments, fits = COMPONENTS[component].arguments, COMPONENTS[component].fits(m)
    pixels = PIXELS.get(component, 8)
    if side % pixels:
        raise BadInput(f"--side {side}: expected a multiple of {pixels}")
    sizes = {"N": 1, "H": side // pixels, "W": side // pixels, "J": tokens, "T": LAYERS}
    sizes |= {letter: fit.n for letter, fit in fits.items() if letter not in sizes}
    given = {}
    for name, argument in arguments.items():
        if argument.optional and (name not in fits or not fits[name].holds(1) or fits[name].holds(0)):
            continue
        if name in ("timesteps", "guidance"):
            given[name] = np.array([TIMES.get(component, 0.5) if name == "timesteps" else 3.5])
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


def blocks_inputs(side: int, tokens: int, width: int = 3072, head: int = 128) -> dict[str, np.ndarray]:
    """Make recipe inputs of Flux's blocks for a picture: img, txt, both (joined), vec and RoPE's angle."""
    from refsd.kernels.rope import rope_angles
    from refsd.models.flux import AXES_DIM, THETA, grid_ids

    assert sum(AXES_DIM) == head
    L = (side // 16) ** 2
    shapes = {"img": (1, L, width), "txt": (1, tokens, width), "vec": (1, width)}
    drawn = {name: realize(Recipe(shape), f"bench {name}").values() for name, shape in shapes.items()}
    ids = np.pad(grid_ids(side // 8, side // 8), ((tokens, 0), (0, 0)))[None]
    return drawn | {
        "both": np.concatenate([drawn["txt"], drawn["img"]], axis=1),
        "angle": rope_angles(ids, AXES_DIM, THETA),
    }


def blocks_rows(side: int, tokens: int) -> list[str]:
    L = (side // 16) ** 2
    return [f"Flux, {kind} block, {L} + {tokens} tokens" for kind in ("double", "single")]


def refsd_blocks(request: BenchRequest) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """Prepare refsd's Flux blocks with recipe weights in f16. -> (row -> function that runs the block, facts)"""
    from refsd.models.catalogue import NETWORKS
    from refsd.models.flux import double_stream_block, single_stream_block
    from refsd.models.flux.network import FLUX_DEV
    from refsd.module import Module
    from refsd.weights.recipes import tensor_recipe

    tokens = request.tokens or 512
    shapes = NETWORKS["flux"].shapes(FLUX_DEV._replace(double_blocks=1, single_blocks=1))
    weights = {
        name: realize(tensor_recipe(name, shape, "f16"), name)
        for name, shape in shapes.items()
        if "_blocks." in name
    }
    m, x = Module(weights, Arithmetic(FLOAT32)), blocks_inputs(request.side, tokens)
    double, single = blocks_rows(request.side, tokens)
    return {
        double: lambda: double_stream_block(m["double_blocks.0"], x["img"], x["txt"], x["vec"], x["angle"]),
        single: lambda: single_stream_block(m["single_blocks.0"], x["both"], x["vec"], x["angle"]),
    }, {"weights": "f16"}


def torch_blocks(request: BenchRequest) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """Prepare diffusers' Flux blocks with their own random weights; values do not affect the time."""
    try:
        import diffusers
        import torch
        from diffusers.models.transformers.transformer_flux import (
            FluxSingleTransformerBlock,
            FluxTransformerBlock,
        )
    except ImportError as error:
        raise Absent(f"{error.name} is not installed") from None

    torch.set_grad_enabled(False)
    tokens = request.tokens or 512
    x = {name: torch.from_numpy(value) for name, value in blocks_inputs(request.side, tokens).items()}
    angle = x["angle"][0].repeat_interleave(2, dim=1).float()
    turn = angle.cos(), angle.sin()
    two, one = FluxTransformerBlock(3072, 24, 128).eval(), FluxSingleTransformerBlock(3072, 24, 128).eval()
    double, single = blocks_rows(request.side, tokens)
    return {
        double: lambda: two(x["img"], x["txt"], x["vec"], turn),
        single: lambda: one(x["img"], x["txt"], x["vec"], turn),
    }, {
        "version": torch.__version__,
        "diffusers": diffusers.__version__,
        "threads": torch.get_num_threads(),
        "weights": "f32",
    }
