"""Draw a whole picture with an unmodified sd-cli, and read its intermediate tensors through the tap.

Only models with a UNet are supported: their graphs are recognised by shape.
"""

from collections.abc import Sequence

import numpy as np

from refsd.engines.sdcpp.program import Program
from refsd.engines.sdcpp.reach import scratch
from refsd.engines.sdcpp.tap import Graph
from refsd.golden.engine import EngineFailure
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.plan import Plan

# setting -> sd-cli's flag; a setting of None is left to sd-cli's default
_FLAGS = {
    "prompt": "-p",
    "negative_prompt": "-n",
    "width": "-W",
    "height": "-H",
    "steps": "--steps",
    "cfg_scale": "--cfg-scale",
    "guidance": "--guidance",
    "sampler": "--sampling-method",
    "schedule": "--scheduler",
    "rng": "--rng",
    "clip_skip": "--clip-skip",
    "seed": "-s",
}
_SIZES = ("width", "height")  # 0 stands for sd-cli's default


def flags(settings) -> list[str]:
    """Translate the settings that the user gave (refsd.pipelines.settings) to sd-cli's flags."""
    given = {name: getattr(settings, name) for name in _FLAGS}
    left = [name for name, value in given.items() if value in (None, "") or (name in _SIZES and value == 0)]
    return [word for name, value in given.items() if name not in left for word in (_FLAGS[name], str(value))]


def draw(program: Program, args: Sequence[str], pipe: Pipeline, plan: Plan) -> dict[str, np.ndarray]:
    """Run sd-cli and return the tensors that its graphs show, by the names of refsd/disagreement/picture_runs.py.

    args: sd-cli's flags for the model and the settings
    plan: the same settings, resolved by refsd

    Raises EngineFailure if sd-cli fails, or if its graphs are not those of such a picture.
    """
    if pipe.variant.flow is not None:
        raise EngineFailure(f"how sd-cli draws {pipe.variant.title} is not known here: UNets are")
    if not program.shares_ggml:
        raise EngineFailure("this sd-cli holds ggml inside: build it with SD_BUILD_SHARED_GGML_LIB=ON")
    with scratch() as folder:
        graphs = program.run_tapped([*args, "-o", str(folder / "out.png")]).graphs
    return tensors(graphs, pipe, plan)


def tensors(graphs: Sequence[Graph], pipe: Pipeline, plan: Plan) -> dict[str, np.ndarray]:
    """Read context, UNet calls, latent and image from one picture's graphs. Raises EngineFailure."""
    shape = plan.latent_shape[1:]
    calls = [graph for graph in graphs if graph.output.shape == shape]
    pictures = [graph for graph in graphs if graph.output.shape == (3, plan.height, plan.width)]
    conditions = ("cond", "uncond") if plan.guided else ("cond",)
    if not calls or len(calls) % len(conditions) or len(pictures) != 1:
        raise EngineFailure(f"sd-cli computed {len(calls)} graphs of latents and {len(pictures)} of a picture")
    found: dict[str, np.ndarray] = {}
    for which, graph in zip(conditions, calls, strict=False):
        found[which] = _input(graph, lambda a: a.ndim == 2 and a.shape != shape)[None]
        pooled = [a for a in graph.inputs if a.ndim == 1 and a.size > 1]
        found |= {f"{which}.y": pooled[0][None]} if len(pooled) == 1 else {}
    for k in range(len(calls) // len(conditions)):
        own = calls[k * len(conditions) : (k + 1) * len(conditions)]
        found[f"calls.{k}.x"] = _input(own[0], lambda a: a.shape == shape)[None]
        found[f"calls.{k}.timesteps"] = _input(own[0], lambda a: a.size == 1).reshape(1)
        for which, graph in zip(conditions, own, strict=True):
            found[f"calls.{k}.{which}"] = graph.output[None]
    z = pictures[0].inputs[0][None]
    scale = pipe.autoencoder.scale
    found["latent"] = z if scale is None else scale.to_denoiser(z)
    found["image"] = pictures[0].output[None]
    return found


def _input(graph: Graph, wanted) -> np.ndarray:
    fitting = [a for a in graph.inputs if wanted(a)]
    if len(fitting) != 1:
        raise EngineFailure(f"sd-cli's graph {graph.signature} is not that of a UNet")
    return fitting[0]
