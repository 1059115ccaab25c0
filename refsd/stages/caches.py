"""Caches that skip work in some steps: which steps each condition reuses, and the answers that it gives."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from refsd.caches import CACHES
from refsd.caches.cache import Cache, Call, Place, Steps
from refsd.golden.recipe import Recipe
from refsd.numerics.errors import BadInput
from refsd.samplers.levels import FlowLevels
from refsd.stages.cache_bugs import BUGS
from refsd.stages.stage import REQUIRED, Output, Stage, StageInputs, case, part


class CacheRule(NamedTuple):
    """The parts of the rule.

    kinds: name -> cache
    fresh: True if a picture begins with nothing kept
    asks:  conditions of a step -> the order in which the cache is asked
    """

    kinds: Mapping[str, type[Cache]]
    fresh: bool
    asks: Callable[[list[str]], list[str]]


RULE = CacheRule(CACHES, True, lambda conditions: conditions)


def _run(rule: CacheRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    t, p = inputs.tensors, inputs.params
    kind, levels = rule.kinds[p["cache"]], FlowLevels(p["shift"])
    unknown, count = p["options"].keys() - kind.options.keys(), len(p["sigmas"]) - 1
    if unknown or len(p["path"]) != count:
        found = f"options {sorted(p['options'])} and a path of {len(p['path'])}"
        expected = f"some of {', '.join(kind.options)} and a path of {count}"
        raise BadInput(f"stage/caches: {found}: expected {expected}")
    if kind.place in (Place.FIRST_BLOCK, Place.MODULATED) and "head" not in t:
        raise BadInput(f"stage/caches: {p['cache']} looks into the first block: expected an input 'head'")
    steps = Steps(np.array(p["sigmas"]), lambda share: float(levels.to_sigma((1 - share) * 999)))
    conditions = [name for name in ("cond", "uncond") if name in t]
    reused: dict[str, list[int]] = {name: [] for name in conditions}
    answers: dict[str, list[np.ndarray]] = {name: [] for name in conditions}
    cache = kind(steps, **p["options"])
    for picture in range(p["pictures"]):
        cache = kind(steps, **p["options"]) if rule.fresh and picture else cache
        for step, share in enumerate(np.array(p["path"], inputs.dtype)):
            for name in rule.asks(conditions):
                start = t["x"] + share * t["x_way"]
                signal = start if "head" not in t else t["head"] + share * t["head_way"]
                signal = start + signal if kind.place is Place.FIRST_BLOCK else signal
                call = Call(name, step, start, signal)
                y = cache.reuse(call)
                reused[name].append(int(y is not None))
                if y is None:
                    y = t[name] + share * t[f"{name}_way"]
                    cache.keep(call, y)
                answers[name].append(y)
    outputs = {f"{name}_reused": np.array(reused[name]) for name in conditions}
    return outputs | {f"{name}_out": np.stack(answers[name]) for name in conditions}


def _size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """The largest states that any step has, times what an extrapolation makes of their errors."""
    t, p = inputs.tensors, inputs.params
    farthest = 1 + max(map(abs, p["path"]))
    states = sum(np.abs(y) for name, y in t.items()) * farthest
    d, order = p["options"].get("interval", 1), p["options"].get("order", 0)
    return 4 * states * sum((2 * d) ** k / math.factorial(k) for k in range(order + 1))


_KNOWN = (
    part("what one picture kept is used for the next", fresh=False),
    part("the call without the prompt decides", asks=lambda conditions: conditions[::-1]),
    *(part(name, kinds={**CACHES, cache: kind}) for cache, bugs in BUGS.items() for name, kind in bugs.items()),
)

# Steps that move by turns little and much.
_PATH = (0.0, 0.125, 0.25, 0.75, 0.8125, 0.875, 0.9375, 1.0, 1.5, 1.5625, 1.75, 1.8125, 1.875, 1.84375)
_SIGMAS = tuple(1 - s / len(_PATH) for s in range(len(_PATH) + 1))
_SHAPE = (2, 3, 5)
_RATIOS = (1.0, 1.1, 1.02, 0.97, 0.95)


def _case(label: str, cache: str, guided: bool = False, head: bool = False, pictures: int = 1, **options):
    names = ["x", "cond"] + ["uncond"] * guided + ["head"] * head
    inputs = {name: Recipe(_SHAPE, offset=0.25) for name in names}
    inputs |= {f"{name}_way": Recipe(_SHAPE, exponent=-17) for name in names}
    params = {"sigmas": [*_SIGMAS], "path": [*_PATH], "pictures": pictures, "options": options}
    return case("caches", label, inputs, cache=cache, **params)


STAGES = (
    Stage(
        "caches",
        "A cache over the steps of a run: which steps are reused, and the answers. In step s a state is its tensor "
        "plus path[s] times its way; the first block gives x + head, or has head as its modulated input.",
        inputs={
            "x": "[N, L, D]: what the cache starts from",
            "x_way": "[N, L, D]",
            "cond": "[N, L, D]: the answer if it is computed",
            "cond_way": "[N, L, D]",
            "uncond?": "[N, L, D]: without the prompt, asked after it",
            "uncond_way?": "[N, L, D]",
            "head?": "[N, L, D]: of the first block",
            "head_way?": "[N, L, D]",
        },
        params={
            "cache": REQUIRED,
            "options": {},
            "sigmas": REQUIRED,
            "path": REQUIRED,
            "shift": 3.0,
            "pictures": 1,
        },
        outputs={
            "cond_reused": Output(("step",)),
            "uncond_reused": Output(("step",)),
            "cond_out": Output(("step", "item", "token", "channel"), _size, 8),
            "uncond_out": Output(("step", "item", "token", "channel"), _size, 8),
        },
        rule=RULE,
        choices={"cache": CACHES},
        run=_run,
        known=_KNOWN,
        cases=(
            _case("easycache", "easycache", guided=True, threshold=0.06, end=0.9),
            _case("easycache-two-pictures", "easycache", pictures=2, threshold=0.06, start=0.05, end=1.0),
            _case("ucache", "ucache", threshold=0.3),
            _case("ucache-kept-error", "ucache", guided=True, threshold=0.4, decay=0.75, relative=0, reset=0),
            _case("ucache-faded", "ucache", guided=True, threshold=1.02, start=0, end=1.0, decay=0.75, reset=0),
            _case(
                "ucache-absolute", "ucache", guided=True, threshold=0.527, start=0, decay=0.5, relative=0, reset=0
            ),
            _case("dbcache", "dbcache", guided=True, threshold=0.03007, Fn=30, Bn=2),
            _case("first-block", "first-block", guided=True, head=True, threshold=0.023),
            _case("taylorseer", "taylorseer", interval=3, before=3, after=11, order=2),
            _case("taylorseer-two-pictures", "taylorseer", guided=True, pictures=2, interval=4, before=3, order=3),
            _case(
                "magcache",
                "magcache",
                guided=True,
                threshold=0.15,
                most=2,
                retention=0.25,
                ratios=[*_RATIOS],
            ),
            _case(
                "magcache-four",
                "magcache",
                guided=True,
                threshold=0.079,
                most=4,
                retention=0.3,
                ratios=[*_RATIOS],
            ),
            _case("teacache", "teacache", head=True, threshold=0.105, polynomial=[2.0, 0.6, 0.0]),
            _case("teacache-guided", "teacache", guided=True, head=True, threshold=0.2, polynomial=[2.0, 0.6, 0.0]),
        ),
    ),
)
