"""Merge an adapter file into one layer: tensors under the trainers' names -> the layer's new weight."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refsd.kernels.adapters import Adapter, DoRA, LoHa, LoKr, LoRA, OutputRotation
from refsd.kernels.adapters.strengths import dora_lycoris, dora_peft, dora_whole
from refsd.stages.adapter_cases import CASES
from refsd.stages.adapter_rotations import ROTATIONS, Change
from refsd.stages.adapter_rule import (
    RULE,
    Tensors,
    bias_size,
    joined_changes,
    merged_size,
    rank_of,
    run,
    strength_of,
)
from refsd.stages.stage import NoDifference, Output, Params, Stage, param, part

# --- what engines got wrong --------------------------------------------------------------------------------------


def _without(*names: str) -> Callable[[Tensors], Tensors]:
    def parts(right: Tensors) -> Tensors:
        if not right.keys() & set(names):
            raise NoDifference
        return {name: y for name, y in right.items() if name not in names}

    return parts


def _other(**changes: Callable[[Tensors], np.ndarray]) -> Callable[[Tensors], Tensors]:
    def parts(right: Tensors) -> Tensors:
        if not changes.keys() <= right.keys():
            raise NoDifference
        return {name: changes[name](right) if name in changes else y for name, y in right.items()}

    return parts


def _scaled(factor: Callable[[int, bool], float], alpha: bool | None = None) -> Callable[[dict[str, Tensors]], Any]:
    """Multiply alpha, by default the rank, by factor(rank, the file has an alpha).

    alpha: True: only modules with an alpha; False: only those without; None: all
    """

    def modules(right: dict[str, Tensors]) -> dict[str, Tensors]:
        changed = {}
        for module, parts in right.items():
            has, rank = "alpha" in parts, rank_of(parts)
            own = parts["alpha"] if has else np.array(float(rank))
            on = alpha is None or alpha == has
            changed[module] = {**parts, "alpha": own * factor(rank, has)} if on else parts
        return changed

    return modules


def _rank_of_the_first(right: dict[str, Tensors]) -> dict[str, Tensors]:
    """Divide every alpha by the first module's rank."""
    if len(right) < 2:
        raise NoDifference
    first = rank_of(next(iter(right.values())))
    return {
        module: {**parts, "alpha": parts.get("alpha", np.array(float(rank_of(parts)))) * rank_of(parts) / first}
        for module, parts in right.items()
    }


def _made(kind: type, change: Callable[[Any], Any]) -> Callable[[Adapter, Tensors], Adapter]:
    def adapter(right: Adapter, parts: Tensors) -> Adapter:
        if not isinstance(right, kind):
            raise NoDifference
        return change(right)

    return adapter


class _Delta(NamedTuple):
    """A right adapter whose delta is changed."""

    of: Any
    change: Callable[[Any, np.ndarray, float], np.ndarray]

    def delta(self, weight, strength=1.0):
        return self.change(self.of, weight, strength)


def _wrong(kind: type, change: Callable[[Any, np.ndarray, float], np.ndarray]):
    return _made(kind, lambda right: _Delta(right, change))


def _turned(change: Change) -> Callable[[Adapter, Tensors], Any]:
    """Build or apply a rotation in another way."""

    def adapter(right: Adapter, parts: Tensors) -> _Delta:
        if not isinstance(right, OutputRotation):
            raise NoDifference
        return _Delta(right, lambda oft, weight, strength: change(oft, parts, weight, strength))

    return adapter


def _a_share(right: dict[str, Tensors]) -> dict[str, Tensors]:
    if len(right) < 2:
        raise NoDifference
    return {name: {**parts, "up": parts["up"][: len(parts["up"]) // len(right)]} for name, parts in right.items()}


def _a_share_of_rows(params: Params, module: str) -> tuple[int, int] | None:
    rows = params["rows"]
    if len(rows) < 2:
        raise NoDifference
    count = rows[module][1] // len(rows)
    return [*rows].index(module) * count, count


def _sum(loha: LoHa, weight: np.ndarray, strength: float) -> np.ndarray:
    if loha.t1 is not None:
        raise NoDifference
    both = loha.w1_a @ loha.w1_b + loha.w2_a @ loha.w2_b
    return strength * loha.scale * both.reshape(weight.shape)


def _whole(factor) -> np.ndarray:
    return factor if isinstance(factor, np.ndarray) else factor[0] @ factor[1].reshape(len(factor[1]), -1)


def _factors_swapped(lokr: LoKr, weight: np.ndarray, strength: float) -> np.ndarray:
    if weight.ndim != 2 or (isinstance(lokr.w2, tuple) and len(lokr.w2) > 2):
        raise NoDifference
    return strength * lokr.scale * np.kron(_whole(lokr.w2), _whole(lokr.w1))


def _blocks(parts: Tensors) -> np.ndarray:
    return parts["oft_blocks"]


def _of_one_output(parts: Tensors) -> np.ndarray:
    *_, n, b, _ = parts["oft_blocks"].shape
    return parts["alpha"] / (n * b)


def _no_halves(params: Params, module: str) -> tuple[int, int] | None:
    """Rows that wrap around the end start at row 0 instead."""
    first, count = params["rows"].get(module) or (0, 0)
    if not first or 2 * first != count:
        raise NoDifference
    return 0, count


def _by_means(dora: DoRA, weight: np.ndarray, strength: float) -> np.ndarray:
    whole, gain, inner = dora.shares(strength)
    merged = weight + dora.inner.delta(weight, inner)
    mean = merged.mean(axis=tuple(range(1, weight.ndim)), keepdims=True)
    if dora.magnitude.size != mean.size:
        raise NoDifference
    return whole * ((1 + gain * (dora.magnitude.reshape(mean.shape) / mean - 1)) * merged - weight)


def _scaled_afterwards(dora: DoRA, weight: np.ndarray, strength: float) -> np.ndarray:
    if not isinstance(dora.inner, LoRA) or dora.inner.scale == 1:
        raise NoDifference
    whole = dora._replace(inner=dora.inner._replace(scale=1.0)).delta(weight, 1.0)
    return strength * dora.inner.scale * whole


def _taps_swapped(y: np.ndarray) -> np.ndarray:
    return y.reshape(*y.shape[:2], *y.shape[:1:-1]).swapaxes(-1, -2).reshape(y.shape)


def _no_core(parts: Tensors) -> np.ndarray:
    K, L, *taps = parts["mid"].shape
    return np.einsum("kl,rs->klrs", np.eye(K, L), np.ones(taps))


def _along(axis: int, turned: bool) -> Callable[[np.ndarray, list[tuple[Any, np.ndarray]]], np.ndarray]:
    """Join the parts' changes, [O, I] or turned [I, O], along another axis, and read the memory as the layer's."""

    def joined(weight: np.ndarray, changes: list[tuple[Any, np.ndarray]]) -> np.ndarray:
        parts = [delta.T if turned else delta for _, delta in changes]
        alike = len({y.shape[1 - axis] for y in parts}) == 1
        if len(parts) < 2 or weight.ndim != 2 or sum(y.size for y in parts) != weight.size or not alike:
            raise NoDifference
        whole = np.concatenate(parts, axis=axis)
        return weight + (whole.reshape(weight.T.shape).T if turned else whole.reshape(weight.shape))

    return joined


def _behind_the_inputs(weight: np.ndarray, changes: list[tuple[Any, np.ndarray]]) -> np.ndarray:
    """Look for the parts behind the first as if it had as many rows as the layer has inputs."""
    if len(changes) < 2:
        raise NoDifference
    by, merged = weight.shape[1] - len(changes[0][1]), weight.copy()
    for i, (rows, delta) in enumerate(changes):
        at = np.arange(len(weight))[rows] + (by if i else 0)
        seen = (at >= 0) & (at < len(weight))
        merged[at[seen]] += delta[seen]
    return merged


def _over_the_networks_rank(settings: dict[str, Any]) -> dict[str, Any]:
    ranks = settings.get("rank_pattern") or {}
    return {**settings, "alpha_pattern": {m: settings["lora_alpha"] * n / settings["r"] for m, n in ranks.items()}}


def _of_columns(dora: DoRA) -> DoRA:
    if not isinstance(dora.inner, LoRA) or dora.inner.down.shape[1] != len(dora.magnitude):
        raise NoDifference
    return dora._replace(on_input=not dora.on_input)


def _lengths_across(dora: DoRA, weight: np.ndarray, strength: float) -> np.ndarray:
    """Divide rows by the lengths of columns, or the reverse: as many in a square weight."""
    whole, gain, inner = _of_columns(dora).shares(strength)
    if weight.ndim > 2 or len(weight) != weight.shape[1]:
        raise NoDifference
    merged = weight + dora.inner.delta(weight, inner)
    lengths = np.linalg.norm(merged, axis=int(dora.on_input))
    factor = 1 + gain * (dora.magnitude.ravel() / lengths - 1)
    return whole * ((factor if dora.on_input else factor[:, None]) * merged - weight)


def _at_the_layers_step(weight: np.ndarray, changes: list[tuple[Any, np.ndarray]]) -> np.ndarray:
    """Quantise the merged weight to 4 bits again, with the steps that the blocks of 32 had before."""
    if weight.shape[-1] % 32:
        raise NoDifference
    blocks, merged = weight.reshape(-1, 32), joined_changes(weight, changes).reshape(-1, 32)
    levels = [np.unique(block) for block in blocks]
    if max(map(len, levels)) > 16:
        raise NoDifference
    step = np.array([np.diff(own).min() for own in levels])[:, None]
    return (np.clip(np.rint(merged / step), -8, 7) * step).reshape(weight.shape)


def _unscaled_bias(adapter: Any, bias: np.ndarray, strength: float) -> np.ndarray | None:
    return strength * adapter.bias if getattr(adapter, "bias", None) is not None else None


_DECOMPOSED = ("dora_scale", "magnitude")
# What trainers take where a file has no alpha.
_ALPHAS = 1, 8, 16, 32
_KNOWN = (
    part("modules of the other stream or transformer are merged, too", belongs=lambda elsewhere, module: True),
    part(
        "modules of the other stream in place of this one's",
        belongs=lambda elsewhere, module: module in elsewhere or not elsewhere,
    ),
    part("rows of a fused layer whose number is another's are left out", fits=lambda rows, whole: rows == whole),
    part("each part on the first rows", rows=lambda p, module: p["rows"].get(module) and (0, p["rows"][module][1])),
    part(
        "rows in reverse order",
        rows=lambda p, module: dict(zip(p["rows"], reversed(p["rows"].values()), strict=True)).get(module),
    ),
    part("only the first part of a fused layer", modules=lambda right: dict([next(iter(right.items()))])),
    part("the first part for all", modules=lambda right: dict.fromkeys(right, next(iter(right.values())))),
    part("changes of a fused layer's parts joined along the tokens, not the channels", joined=_along(0, True)),
    part("changes of a fused layer's parts joined along the inputs, not the outputs", joined=_along(1, False)),
    part("parts sought behind as many rows of the first as the layer has inputs", joined=_behind_the_inputs),
    part("alpha over the first part's rank", modules=_rank_of_the_first),
    part("alpha missing", modules=_scaled(lambda rank, has: rank, None), parts=_without("alpha")),
    part("rank over alpha", parts=_other(alpha=lambda p: np.array(rank_of(p) ** 2 / p["alpha"]))),
    part("alpha not divided by the rank", modules=_scaled(lambda rank, has: rank, True)),
    part("alpha over the root of the rank", modules=_scaled(lambda rank, has: rank**0.5, True)),
    *(part(f"no alpha taken for {n}", modules=_scaled(lambda rank, has, n=n: n / rank, False)) for n in _ALPHAS),
    part("alpha over the rank squared", modules=_scaled(lambda rank, has: 1 / rank, True)),
    part("alpha over the rank once more", parts=_other(alpha=lambda p: np.array(p["alpha"] ** 2 / rank_of(p)))),
    part("the learned scalar left out", parts=_without("scalar")),
    part(
        "the learned scalar in place of alpha over the rank",
        parts=_other(scalar=lambda p: p["scalar"] / p["alpha"] * rank_of(p)),
    ),
    part("strength 1", strength=lambda p: 1.0),
    part("strength left out of the UNet", strength=lambda p: 1.0 if p["component"] == "unet" else strength_of(p)),
    part("the text encoder's strength for the UNet", strength=lambda p: strength_of({**p, "component": "text"})),
    part("the UNet's strength for the text encoder", strength=lambda p: strength_of({**p, "component": "unet"})),
    part("strength squared", strength=lambda p: strength_of(p) ** 2),
    part("strength of the other sign", strength=lambda p: -strength_of(p)),
    part("Tucker's core left out", parts=_other(mid=_no_core)),
    part("Tucker's core transposed", parts=_other(mid=lambda p: p["mid"].swapaxes(0, 1))),
    part("halves of the rows not exchanged", rows=_no_halves),
    part(
        "down's rank in halves exchanged", parts=_other(down=lambda p: np.roll(p["down"], len(p["down"]) // 2, 0))
    ),
    part("down turned over", parts=_other(down=lambda p: p["down"][::-1])),
    part("rows and columns of the filter swapped", parts=_other(down=lambda p: _taps_swapped(p["down"]))),
    part("the first factor's a in the second", parts=_other(hada_w2_a=lambda p: p["hada_w1_a"])),
    part("the first factor's b in the second", parts=_other(hada_w2_b=lambda p: p["hada_w1_b"])),
    part("the first core for both", parts=_other(hada_t2=lambda p: p["hada_t1"])),
    part("factors added, not multiplied", adapter=_wrong(LoHa, _sum)),
    part("Kronecker factors swapped", adapter=_wrong(LoKr, _factors_swapped)),
    part(
        "alpha over a side of LoKr's factors, which are whole",
        parts=_other(
            alpha=lambda p: p["alpha"],
            lokr_w1=lambda p: p["lokr_w1"] * p["alpha"] / len(p["lokr_w1"]),
            lokr_w2=lambda p: p["lokr_w2"],
        ),
    ),
    part("w1 transposed", parts=_other(lokr_w1=lambda p: p["lokr_w1"].T)),
    part("DoRA left out", parts=_without(*_DECOMPOSED)),
    part("lengths of columns for those of rows", adapter=_made(DoRA, _of_columns)),
    part("each row divided by a column's length, or the reverse", adapter=_wrong(DoRA, _lengths_across)),
    part("lengths of the weight without the delta", adapter=_made(DoRA, lambda dora: dora._replace(of_base=True))),
    part("lengths of the merged weight", adapter=_made(DoRA, lambda dora: dora._replace(of_base=False))),
    *(
        part(
            f"DoRA's strength {name}", adapter=_made(DoRA, lambda dora, shares=shares: dora._replace(shares=shares))
        )
        for name, shares in (
            ("on the delta, before the lengths", dora_peft),
            ("on all that it changes", dora_whole),
            ("on the factor", dora_lycoris),
        )
    ),
    part("DoRA's rows divided by their means", adapter=_wrong(DoRA, _by_means)),
    part("alpha over rank on all that DoRA changes", adapter=_wrong(DoRA, _scaled_afterwards)),
    part("a rotation's constraint not times the outputs", parts=_other(alpha=_of_one_output, oft_blocks=_blocks)),
    *(part(name, adapter=_turned(change)) for name, change in ROTATIONS.items()),
    part("rows of a part divided among all parts again", rows=_a_share_of_rows, modules=_a_share),
    part("a row of length 0 divided by its length", adapter=_made(DoRA, lambda dora: dora._replace(eps=0.0))),
    part("quantised again at the steps that the layer had", joined=_at_the_layers_step),
    part("the adapter's bias left out", bias=lambda adapter, bias, strength: None),
    part("the adapter's bias not times alpha over rank", bias=_unscaled_bias),
    param("PEFT's settings left out", settings={}),
    param("alpha over the rank, not over its root", settings=lambda own: {**own, "use_rslora": False}),
    param("alpha over the file's rank, not over the module's own", settings=_over_the_networks_rank),
    param("the settings' patterns of alpha left out", settings=lambda own: {**own, "alpha_pattern": {}}),
    part("the file left out", fits=lambda rows, whole: False),
)


STAGES = (
    Stage(
        "adapter",
        "A layer's weight with an adapter file merged in.",
        inputs={
            "weight": "[O, I] or [O, I, R, S]",
            "bias?": "[O]",
            "*": "the file's tensors, by the names of its trainer",
        },
        # elsewhere: modules of the file that belong to another layer, of the other stream or another transformer
        params={"rule": "trainer", "strength": 1.0, "tag": "", "component": "unet", "rows": {}, "settings": {}}
        | {"elsewhere": []},
        outputs={
            "merged": Output(("row", "input", "filter row", "filter column"), merged_size, 120),
            "merged_bias": Output(("row",), bias_size, 12),
        },
        rule=RULE,
        run=run,
        known=_KNOWN,
        cases=CASES,
    ),
)
