"""Cases of whole pictures at full size, small enough that a server on a CPU draws one in seconds.

Engines differ in the generator of the first noise and in its scale at the highest level, so a case of each is here;
a server answers those that its API can ask for.
"""

from typing import Any

from refsd.golden.case import Case, ModelRecipe

_MODEL = ModelRecipe("sd15", "f16")
# 4 steps of the schedule discrete begin at whole timesteps, which engines that round timesteps do not move.
_COMMON: dict[str, Any] = {
    "prompt": "a photograph of an astronaut riding a horse",
    "negative_prompt": "blurry, low quality",
    "width": 64,
    "height": 64,
    "steps": 4,
    "cfg_scale": 3.0,
    "sampler": "euler",
    "schedule": "discrete",
    "rng": "cuda",
    "seed": 42,
}


def _case(label: str, **params: Any) -> Case:
    return Case(f"full/sd15/picture/{label}", "picture", {}, {**_COMMON, **params}, _MODEL)


CASES = [
    _case("euler"),
    _case("tall-dpmpp2m-karras", height=128, sampler="dpm++2m", schedule="karras", seed=7),
    _case("given-sigmas", sigmas=[14.0, 6.0, 2.0, 0.5, 0.0], sampler="heun"),
    _case("cpu-noise", rng="cpu", seed=1234),
    _case("cpu-noise-unit-data", rng="cpu", first_noise="comfyui", sampler="dpm++2m", seed=1234),
]
