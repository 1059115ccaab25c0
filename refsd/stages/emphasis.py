"""Apply prompt weights to a text encoder's hidden states, by each engine's rule."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.conventions import PROMPT_CARDS
from refsd.golden.recipe import Recipe
from refsd.stages.stage import REQUIRED, Output, Stage, StageInputs, case, part
from refsd.tokenizers.emphasis import from_the_empty_prompt, mean_kept, multiplied


class EmphasisRule(NamedTuple):
    """The rule. weigh: engine -> (hidden states, weights, hidden states of an empty prompt -> hidden states)"""

    weigh: Callable[[str], Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]]


def _weigh(engine: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    of = PROMPT_CARDS[engine].weigh
    if of is None:
        return lambda hidden, weights, empty: hidden
    if of is from_the_empty_prompt:
        return of
    return lambda hidden, weights, empty: of(hidden, weights)


def _weighed(rule: EmphasisRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    t, p = inputs.tensors, inputs.params
    weights = np.asarray(p["weights"], inputs.dtype)
    weigh = rule.weigh(p["engine"])
    return {"hidden": np.stack([weigh(h, weights, e) for h, e in zip(t["hidden"], t["empty"], strict=True)])}


def _emphasis_size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """The mean over the chunk cancels: its relative error grows by the mean of |values| over |mean|."""
    hidden, weights = inputs.tensors["hidden"], np.abs(np.asarray(inputs.params["weights"]))[:, None]
    axes = (1, 2)
    worst = sum(
        np.abs(h).mean(axis=axes, keepdims=True) / np.abs(h.mean(axis=axes, keepdims=True))
        for h in (hidden, hidden * weights)
    )
    return worst * (np.abs(truth) + np.abs(hidden) * (1 + weights) + np.abs(inputs.tensors["empty"]))


def _of_each_token(hidden: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Keep each token's own mean: this undoes the weights, except for their sign."""
    y = hidden * weights[:, None]
    return y * (hidden.mean(axis=1, keepdims=True) / y.mean(axis=1, keepdims=True))


def _by_norm(hidden: np.ndarray, weights: np.ndarray) -> np.ndarray:
    y = hidden * weights[:, None]
    return y * (np.linalg.norm(hidden) / np.linalg.norm(y))


def _same_for_all_engines(change: Callable[[np.ndarray, np.ndarray], np.ndarray]):
    return lambda engine: lambda hidden, weights, empty: change(hidden, weights)


def _weights(change: Callable[[np.ndarray], np.ndarray]):
    return lambda engine: lambda hidden, weights, empty: _weigh(engine)(hidden, change(weights), empty)


_LINE = [1.0, 1.0, 1.3, 1.3, 0.8, 1.0, 1.1]
_BELOW = [1.0, 1.25, -1.1, -0.3, 0.0, 1.0, 1.0]


def _emphasis_case(engine: str, label: str = "", weights: list[float] = _LINE):
    inputs = {"hidden": Recipe((2, 7, 12), offset=0.25), "empty": Recipe((2, 7, 12), exponent=-16)}
    return case("emphasis", engine + label, inputs, engine=engine, weights=weights)


EMPHASIS = Stage(
    "emphasis",
    "What a prompt's weights do to its hidden states, by an engine's rule.",
    inputs={"hidden": "[N, J, E]", "empty": "[N, J, E]: of an empty prompt"},
    params={"engine": REQUIRED, "weights": REQUIRED},
    outputs={"hidden": Output(("item", "token", "channel"), _emphasis_size, 100)},
    rule=EmphasisRule(_weigh),
    choices={"engine": PROMPT_CARDS},
    run=_weighed,
    known=(
        part("multiplied, the mean not kept", weigh=_same_for_all_engines(multiplied)),
        part("the mean kept", weigh=_same_for_all_engines(mean_kept)),
        part("from the empty prompt", weigh=lambda engine: from_the_empty_prompt),
        part("not weighted", weigh=_same_for_all_engines(lambda hidden, weights: hidden)),
        part("each token's own mean kept", weigh=_same_for_all_engines(_of_each_token)),
        part("the norm kept", weigh=_same_for_all_engines(_by_norm)),
        part("weights one token late", weigh=_weights(lambda w: np.append(w[:1], w[:-1]))),
        part("weights one token early", weigh=_weights(lambda w: np.append(w[1:], w[-1:]))),
        part("weights squared", weigh=_weights(np.square)),
        part("negative weights without their sign", weigh=_weights(np.abs)),
        part("negative weights as 0", weigh=_weights(lambda w: np.maximum(w, 0))),
        part("weight 0 taken for none, which is 1", weigh=_weights(lambda w: np.where(w == 0, 1, w))),
        part("weights count half", weigh=_weights(lambda w: 1 + (w - 1) / 2)),
    ),
    cases=(
        *(_emphasis_case(engine) for engine in ("sdcpp", "comfyui", "a1111", "diffusers")),
        *(_emphasis_case(engine, "-below-0", _BELOW) for engine in ("sdcpp", "comfyui", "a1111")),
    ),
)


STAGES = (EMPHASIS,)
