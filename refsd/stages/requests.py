"""Consecutive requests to one process: each must get the answer that it would get alone."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.recipe import Recipe
from refsd.numerics.errors import BadInput
from refsd.samplers.noise import RNGS, Noise
from refsd.stages.noising import normal_size
from refsd.stages.stage import REQUIRED, Output, Stage, StageInputs, case, part

Request = Mapping[str, Any]
_LENGTH = 16  # tokens of a padded prompt
_FIELDS = frozenset(("adapters", "seed", "size", "tokens", "steps"))


class Merged(NamedTuple):
    """A layer after a request.

    weight: its present weight
    added:  the delta that was added to it
    deltas: merged adapter -> strength
    """

    weight: np.ndarray
    added: np.ndarray
    deltas: Mapping[str, float]


class RequestsRule(NamedTuple):
    """The parts of the rule: how state of earlier requests could leak into a request. None: it is the first.

    adapters: requested adapters, previous state -> adapters to merge, with their strengths
    base:     the file's weight, previous state -> weight to which they are added
    merge:    the sum of the requested deltas, previous state -> delta that is added
    stream:   seed, a new generator of this seed, the previous request's generator -> generator
    prompt:   request, previous request -> the one whose prompt is used
    size:     request, previous request -> the one whose size is used
    step:     step of the request, number of all earlier requests' steps -> position in the schedule
    draws:    number of all earlier requests' steps -> draws discarded before the noise of the first step
    """

    adapters: Callable[[Mapping[str, float], Merged | None], Mapping[str, float]] = lambda asked, before: asked
    base: Callable[[np.ndarray, Merged | None], np.ndarray] = lambda file, before: file
    merge: Callable[[np.ndarray, Merged | None], np.ndarray] = lambda added, before: added
    stream: Callable[[int, Noise, Noise | None], Noise] = lambda seed, new, before: new
    prompt: Callable[[Request, Request | None], Request] = lambda request, before: request
    size: Callable[[Request, Request | None], Request] = lambda request, before: request
    step: Callable[[int, int], int] = lambda step, earlier: step
    draws: Callable[[int], int] = lambda earlier: 0


def _positions(size: list[int]) -> np.ndarray:
    """Return the row and column of each patch of 2 x 2 latent pixels, as for RoPE. -> [H / 16 * W / 16, 2]"""
    rows, columns = size[0] // 16, size[1] // 16
    return np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1).reshape(-1, 2)


def _run(rule: RequestsRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    t, p = inputs.tensors, inputs.params
    rng = RNGS[p["rng"]]
    merged: Merged | None = None
    stream: Noise | None = None
    before: Request | None = None
    earlier = 0
    found: dict[str, np.ndarray] = {}
    for i, request in enumerate(p["requests"], 1):
        if request.keys() != _FIELDS or any(f"{name}_up" not in t for name in request["adapters"]):
            raise BadInput(f"stage/requests: request {i}: expected {', '.join(sorted(_FIELDS))}, of adapters given")
        deltas = rule.adapters(request["adapters"], merged)
        requested = sum(
            (s * (t[f"{n}_up"] @ t[f"{n}_down"]) for n, s in deltas.items()), np.zeros_like(t["weight"])
        )
        added = rule.merge(requested, merged)
        merged = Merged(rule.base(t["weight"], merged) + added, added, deltas)
        prompt, sized = rule.prompt(request, before), rule.size(request, before)
        height, width = request["size"]
        stream = rule.stream(request["seed"], rng(request["seed"]), stream)
        count = 2 + rule.draws(earlier)
        noise, *_, later = (
            stream.randn((1, 4, height // 8, width // 8)).astype(inputs.dtype) for _ in range(count)
        )
        mask = (np.arange(_LENGTH) < prompt["tokens"]).astype(np.int64)[None]
        found |= {
            f"weight_{i}": merged.weight,
            f"mask_{i}": mask,
            f"positions_{i}": _positions(sized["size"]),
            f"noise_{i}": noise,
            f"step_noise_{i}": later,
            f"steps_{i}": np.array([rule.step(k, earlier) for k in range(request["steps"])]),
        }
        before, earlier = request, earlier + request["steps"]
    return found


def _size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """The deltas of all requests on absolute values, twice each, as an engine may merge and then subtract them."""
    t = {name: np.abs(y) for name, y in inputs.tensors.items()}
    size = t["weight"].copy()
    for request in inputs.params["requests"]:
        for name, strength in request["adapters"].items():
            size += 2 * abs(strength) * (t[f"{name}_up"] @ t[f"{name}_down"])
    return size


# --- what engines got wrong --------------------------------------------------------------------------------------


def _stale(find: Callable[[Mapping[str, float], Mapping[str, float]], Mapping[str, float]]):
    """find: requested adapters, previous ones -> adapters to merge"""
    return lambda asked, before: asked if before is None else find(asked, before.deltas)


def _old_strengths(requested: Mapping[str, float], before: Mapping[str, float]) -> Mapping[str, float]:
    return {name: before.get(name, strength) for name, strength in requested.items()}


def _kept_where_none_is_asked(requested: Mapping[str, float], before: Mapping[str, float]) -> Mapping[str, float]:
    return requested or before


def _all(requested: Mapping[str, float], before: Mapping[str, float]) -> Mapping[str, float]:
    return {**before, **requested}


def _added_up(requested: Mapping[str, float], before: Mapping[str, float]) -> Mapping[str, float]:
    return {name: requested.get(name, 0) + before.get(name, 0) for name in {**before, **requested}}


def _only_new(requested: Mapping[str, float], before: Mapping[str, float]) -> Mapping[str, float]:
    """Skip adapters that the previous request had, although their deltas were removed."""
    return {name: strength for name, strength in requested.items() if name not in before}


def _as_before(key: str):
    def seen(request: Request, before: Request | None) -> Request:
        return request if before is None else {**request, key: before[key]}

    return seen


def _longest(key: str):
    def seen(request: Request, before: Request | None) -> Request:
        return request if before is None else {**request, key: max(request[key], before[key])}

    return seen


def _same_area(request: Request, before: Request | None) -> Request:
    """Reuse the previous size if the number of pixels is equal: a cache keyed by it."""
    same = before is not None and np.prod(request["size"]) == np.prod(before["size"])
    return {**request, "size": before["size"]} if same else request  # type: ignore[index]


_SEED = "seed_of_requests"


def _goes_on_with_the_seed(seed: int, new: Noise, before: Noise | None) -> Noise:
    """Make a new generator only if the seed differs from the previous one."""
    stream = before if before is not None and getattr(before, _SEED) == seed else new
    setattr(stream, _SEED, seed)
    return stream


_KNOWN = (
    part("adapters stay where none is asked for", adapters=_stale(_kept_where_none_is_asked)),
    part("adapters stay beside those that are asked for", adapters=_stale(_all)),
    part("adapters of the first request for all", adapters=_stale(lambda asked, before: before)),
    part("an adapter keeps the strength that it had", adapters=_stale(_old_strengths)),
    part("an adapter's strengths add up", adapters=_stale(_added_up)),
    part("an adapter that was there is not merged again", adapters=_stale(_only_new)),
    part(
        "merged into the weight that was merged before", base=lambda file, before: before.weight if before else file
    ),
    part(
        "what is merged now is taken out, not what was",
        base=lambda file, before: before.weight if before else file,
        merge=lambda added, before: 0 * added if before else added,
    ),
    part("taken out twice", base=lambda file, before: file - before.added if before else file),
    part("the mask of the prompt before", prompt=_as_before("tokens")),
    part("a mask as long as the longest prompt yet", prompt=_longest("tokens")),
    part("positions of the size before", size=_as_before("size")),
    part("positions of a size of as many pixels", size=_same_area),
    part("the generator goes on", stream=lambda seed, new, before: before or new),
    part("the generator goes on if the seed is the same", stream=_goes_on_with_the_seed),
    part("steps are counted on", step=lambda step, earlier: step + earlier),
    part("the steps' noise is counted on", draws=lambda earlier: earlier),
    part("steps and their noise are counted on", step=lambda step, n: step + n, draws=lambda earlier: earlier),
)


def _request(adapters: dict[str, float], seed: int, size: list[int], tokens: int, steps: int) -> dict[str, Any]:
    return {"adapters": adapters, "seed": seed, "size": size, "tokens": tokens, "steps": steps}


def _case(label: str, *requests: dict[str, Any], rng: str = "cuda"):
    inputs = {"weight": Recipe((12, 20), exponent=-17)}
    for name in dict.fromkeys(name for request in requests for name in request["adapters"]):
        inputs[f"{name}_up"] = Recipe((12, 3), exponent=-17)
        inputs[f"{name}_down"] = Recipe((3, 20), exponent=-17)
    return case("requests", label, inputs, requests=list(requests), rng=rng)


_MOST = 3
_IMAGE = ("picture", "channel", "row", "column")
_OUTPUTS = {
    "weight": Output(("row", "input"), _size, 40),
    "mask": Output(("picture", "token")),
    "positions": Output(("patch", "axis")),
    "noise": Output(_IMAGE, normal_size, 8),
    "step_noise": Output(_IMAGE, normal_size, 8),
    "steps": Output(("step",)),
}

STAGES = (
    Stage(
        "requests",
        "Two or three requests to one process: the layer's weight, the prompt's mask, the patches' positions, "
        "the noise of the start and of the first step, the numbers of the steps. Each as if it were the only one.",
        inputs={"weight": "[O, I]: the file's", "*": "NAME_up [O, R], NAME_down [R, I] of each adapter"},
        # requests: adapters {name: strength}, seed, size [height, width] in pixels, tokens, steps
        params={"requests": REQUIRED, "rng": "cuda"},
        outputs={f"{name}_{i}": output for i in range(1, _MOST + 1) for name, output in _OUTPUTS.items()},
        rule=RequestsRule(),
        run=_run,
        known=_KNOWN,
        cases=(
            _case(
                "adapter-then-none",
                _request({"a": 0.8}, 42, [64, 96], 9, 4),
                _request({}, 42, [64, 96], 5, 4),
            ),
            _case(
                "other-adapter",
                _request({"a": 0.75}, 1, [96, 64], 4, 3),
                _request({"b": 0.5}, 2, [64, 96], 11, 5),
            ),
            _case(
                "other-strength",
                _request({"a": 0.75}, 7, [64, 64], 6, 3),
                _request({"a": 0.25, "b": -0.5}, 7, [96, 128], 6, 4),
                rng="cpu",
            ),
            _case(
                "and-back",
                _request({"a": 0.5}, 3, [64, 96], 8, 2),
                _request({"b": 1.25}, 4, [80, 48], 3, 3),
                _request({"a": 0.5}, 3, [64, 96], 8, 2),
            ),
        ),
    ),
)
