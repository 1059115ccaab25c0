"""The rule by which an adapter file is merged into one layer, and the merge."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.adapters import Target
from refsd.kernels.adapters import Adapter
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored
from refsd.stages.stage import Params, StageInputs
from refsd.weights.adapter_kinds import Misfit, Parts, build
from refsd.weights.adapter_names import split
from refsd.weights.adapter_rules import NAMES
from refsd.weights.adapter_settings import of_module

Tensors = dict[str, np.ndarray]
_LAYER = "weight", "bias"  # names of the layer's own tensors


_TAG = re.compile(r"<lora:[^:>]+(?::([-+.\d]+))?(?::([-+.\d]+))?>")


def strength_of(params: Params) -> float:
    """Return the strength in <lora:NAME:TEXT:UNET>; without UNET, the text encoder's holds for both.

    Source: A1111 extensions-builtin/Lora/extra_networks_lora.py.
    """
    if not params["tag"]:
        return params["strength"]
    found = _TAG.fullmatch(params["tag"])
    if found is None:
        raise BadInput(f"stage/adapter: tag {params['tag']!r}: expected <lora:NAME:1> or <lora:NAME:1:1>")
    text = float(found[1] or 1)
    return float(found[2] or text) if params["component"] == "unet" else text


def joined_changes(weight: np.ndarray, changes: list[tuple[Any, np.ndarray]]) -> np.ndarray:
    merged = weight.copy()
    for rows, delta in changes:
        merged[rows] += delta
    return merged


class AdapterRule(NamedTuple):
    """The parts of the rule. In the right rule modules, parts and adapter return their first argument.

    strength: parameters -> strength of the file on this component
    belongs:  modules of other layers, module -> True if it changes this layer
    rows:     parameters, module -> first row and number of rows that it changes; None: all
    fits:     number of a module's rows, of the weight's rows -> True if the module is applied
    modules:  {module: parts} in the file's order -> {module: parts}
    parts:    a module's parts -> parts
    adapter:  the adapter built from the parts, the parts -> adapter
    joined:   weight, (rows, change) of each module in the file's order -> merged weight
    bias:     adapter, the layer's bias, strength -> change of the bias; None: none
    """

    strength: Callable[[Params], float] = strength_of
    belongs: Callable[[list[str], str], bool] = lambda elsewhere, module: module not in elsewhere
    rows: Callable[[Params, str], tuple[int, int] | None] = lambda params, module: params["rows"].get(module)
    fits: Callable[[int, int], bool] = lambda rows, whole: True
    modules: Callable[[dict[str, Tensors]], dict[str, Tensors]] = lambda modules: modules
    parts: Callable[[Tensors], Tensors] = lambda parts: parts
    adapter: Callable[[Adapter, Tensors], Adapter] = lambda adapter, parts: adapter
    joined: Callable[[np.ndarray, list[tuple[Any, np.ndarray]]], np.ndarray] = joined_changes
    bias: Callable[[Any, np.ndarray, float], np.ndarray | None] = lambda adapter, bias, strength: (
        adapter.bias_delta(bias, strength)
    )


RULE = AdapterRule()


def _modules(tensors: Mapping[str, np.ndarray]) -> dict[str, Tensors]:
    found: dict[str, Tensors] = {}
    for name, value in tensors.items():
        if name not in _LAYER:
            module, its_part = split(name) or ("", "")
            if not its_part:
                raise BadInput(f"stage/adapter: {name}: no part of an adapter")
            found.setdefault(module, {})[its_part] = value
    return found


def rank_of(parts: Tensors) -> int:
    """Return the rank of the factors; 1 for a rotation, which has none."""
    factors = [y for name, y in parts.items() if y.ndim > 1 and name not in ("dora_scale", "oft_blocks", "rescale")]
    return min((min(y.shape[:2]) for y in factors), default=1)


def run(rule: AdapterRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    weight, p = inputs.tensors["weight"], inputs.params
    if p["rule"] not in NAMES:
        raise BadInput(f"stage/adapter: rule {p['rule']!r}: expected one of {', '.join(NAMES)}")
    changes, strength, bias = [], rule.strength(p), inputs.tensors.get("bias")
    for module, tensors in rule.modules(_modules(inputs.tensors)).items():
        if not rule.belongs(p["elsewhere"], module):
            continue
        first, count = rule.rows(p, module) or (0, None)
        which = Target("layer", module, first, count).rows(len(weight))
        if not rule.fits(len(weight[which]), len(weight)):
            continue
        parts = {name: stored(np.ascontiguousarray(y)) for name, y in rule.parts(dict(tensors)).items()}
        settings = of_module(p["settings"], module)
        try:
            expand = lambda t: t.values().astype(inputs.dtype)
            adapter = build(Parts(parts, weight[which].shape, expand, settings, p["rule"]))
        except Misfit as misfit:
            raise BadInput(f"stage/adapter: {module}: {misfit}") from None
        adapter = rule.adapter(adapter, tensors)
        changes.append((which, adapter.delta(weight[which], strength)))
        if bias is not None and (change := rule.bias(adapter, bias[which], strength)) is not None:
            bias = joined_changes(bias, [(which, change)])
    return {"merged": rule.joined(weight, changes)} | ({} if bias is None else {"merged_bias": bias})


def merged_size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """The merge computed on absolute values; for rotations and DoRA an estimate, as they mix whole rows."""
    weight = np.abs(inputs.tensors["weight"])
    modules = _modules(inputs.tensors)
    if any({"dora_scale", "magnitude", "oft_blocks"} & parts.keys() for parts in modules.values()):
        return weight + np.abs(truth) + 8 * weight.max() + np.abs(truth).max()
    absolute = {name: np.abs(y) for name, y in inputs.tensors.items()} | {"weight": np.zeros_like(weight)}
    return weight + abs(run(RULE, inputs._replace(tensors=absolute))["merged"])


def bias_size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    return np.abs(inputs.tensors["bias"]) + np.abs(truth)
