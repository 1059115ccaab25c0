"""Known bugs, to test the cases with: each operation answered wrongly, the way engines have done it.

A case that no mutant fails has nothing to say, and a mutant that no case fails is a bug that gets
through. A mutant is a float32 engine in every other respect.
"""

from typing import NamedTuple

import numpy as np

from refsd.golden.arithmetic import Arithmetic
from refsd.golden.bounds import bound
from refsd.golden.case import Case
from refsd.golden.metrics import measure
from refsd.golden.mutations import (
    Wrong,
    added_min,
    answer,
    bilinear,
    causal_with,
    centred_rms,
    channels_interleaved,
    exchanged,
    first_of_batch,
    gate_times_gelu_of_value,
    gated_by,
    heads_as_tokens,
    mask_before_scale,
    missing_high_bits,
    neighbours_scale,
    other_blocks,
    other_input,
    other_op,
    other_output,
    other_params,
    packed_scales,
    padding_mirrored,
    padding_repeated,
    padding_transposed,
    patches_channel_last,
    read_as_transposed,
    read_as_transposed_image,
    scale_by,
    sigmoid_gelu,
    sines_first,
    softmax_over_columns,
    swapped_nibbles,
    to_float16,
    unsigned,
    without,
    without_tail,
    wrong_embedding,
    wrong_norm,
)
from refsd.golden.numerics import FLOAT32, FLOAT64
from refsd.golden.operations import OPERATIONS, complete, run
from refsd.golden.verdict import Judgement, judge


class Mutant(NamedTuple):
    name: str
    wrong: Wrong


class Trial(NamedTuple):
    """A case put to a mutant. killed: the verdict was "fail"."""

    case: str
    mutant: str
    killed: bool
    judgement: Judgement


_BATCH = Mutant("second item of the batch reads the first", other_input("x", first_of_batch))
_NO_BIAS = Mutant("bias missing", without("bias"))
_ZERO_BIAS = Mutant("bias missing", other_input("bias", np.zeros_like))
_NO_WEIGHT = Mutant("weight missing", other_input("weight", np.ones_like))
_EPS = Mutant("eps ten times too large", other_params(eps=lambda eps: 10 * eps))
_F16_INPUT = Mutant("activations silently float16", other_input("x", to_float16))
_F16_WEIGHT = Mutant("weights silently float16", other_input("weight", to_float16))
_IMAGE = Mutant("height and width swapped", other_input("x", read_as_transposed_image))
_ONE_PASS = Mutant("variance as E[x^2] - E[x]^2 in float32", wrong_norm(one_pass=True))
_UNBIASED = Mutant("variance divided by n - 1", wrong_norm(ddof=1))


def _block_mutants(name: str) -> tuple[Mutant, ...]:
    return (
        Mutant("nibbles in the wrong order", other_blocks(name, swapped_nibbles)),
        Mutant("scale of the neighbouring block", other_blocks(name, neighbours_scale)),
        Mutant("min added, not subtracted", other_blocks(name, added_min)),
        Mutant("upper bits of the quants missing", other_blocks(name, missing_high_bits)),
        Mutant("quants without their sign", other_blocks(name, unsigned)),
        Mutant("upper bits of the packed scales missing", other_blocks(name, packed_scales)),
    )


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "linear": (
        Mutant("weight read as its transpose", other_input("weight", read_as_transposed)),
        _NO_BIAS,
        Mutant("last columns left out", other_input("x", without_tail)),
        _BATCH,
        _F16_INPUT,
        _F16_WEIGHT,
        *_block_mutants("weight"),
    ),
    "conv2d": (
        Mutant("filter flipped", other_input("weight", lambda w: w[:, :, ::-1, ::-1])),
        Mutant(
            "filter transposed",
            other_input("weight", lambda w: w.reshape(*w.shape[:2], w.shape[3], w.shape[2]).swapaxes(2, 3)),
        ),
        Mutant("filter read as channels-last", other_input("weight", channels_interleaved)),
        _NO_BIAS,
        Mutant("border repeated", padding_repeated),
        Mutant("padding on the other side", padding_mirrored),
        Mutant("padding of rows and columns swapped", padding_transposed),
        _IMAGE,
        _BATCH,
        _F16_INPUT,
        _F16_WEIGHT,
    ),
    "im2col": (
        Mutant("columns channel-last", patches_channel_last),
        Mutant("border repeated", padding_repeated),
        _IMAGE,
        _F16_INPUT,
    ),
    "group_norm": (
        _EPS,
        _ONE_PASS,
        _UNBIASED,
        _ZERO_BIAS,
        _NO_WEIGHT,
        Mutant("a group a channel", lambda op, i, p: answer(op, i, {**p, "num_groups": i["x"].shape[1]})),
        Mutant("one group", other_params(num_groups=lambda g: 1)),
        _BATCH,
    ),
    "layer_norm": (_EPS, _ONE_PASS, _UNBIASED, _ZERO_BIAS, _NO_WEIGHT, _BATCH),
    "rms_norm": (_EPS, _NO_WEIGHT, Mutant("mean subtracted", centred_rms), _BATCH),
    "silu": (Mutant("x sigmoid(1.702 x)", other_op("quick_gelu")), Mutant("gelu", other_op("gelu"))),
    "gelu": (
        Mutant("tanh for erf", other_op("gelu_tanh")),
        Mutant("quick GELU for erf", other_op("quick_gelu")),
        Mutant("input through float16", other_input("x", to_float16)),
    ),
    "gelu_tanh": (
        Mutant("erf for tanh", other_op("gelu")),
        Mutant("quick GELU for tanh", other_op("quick_gelu")),
        Mutant("input through float16", other_input("x", to_float16)),
    ),
    "quick_gelu": (
        Mutant("SiLU", other_op("silu")),
        Mutant("erf GELU", other_op("gelu")),
        Mutant("1.7 for 1.702", lambda op, i, p: sigmoid_gelu(i["x"].values(), 1.7)),
    ),
    "geglu": (
        Mutant("halves in the wrong order", gate_times_gelu_of_value),
        Mutant("tanh for erf", gated_by("gelu_tanh")),
        Mutant("SiLU for GELU", gated_by("silu")),
    ),
    "softmax": (
        Mutant("over columns", softmax_over_columns),
        Mutant("mask ignored", without("mask")),
        Mutant("scale missing", lambda op, i, p: answer(op, i, {**p, "scale": 1.0}) if p["scale"] != 1 else None),
        Mutant("mask scaled too", mask_before_scale),
        Mutant("scores silently float16", other_input("x", to_float16)),
    ),
    "attention": (
        Mutant("scale missing", scale_by(0.0)),
        Mutant("scale 1/D", scale_by(-1.0)),
        Mutant("given scale ignored", lambda op, i, p: scale_by(-0.5)(op, i, p) if p["scale"] else None),
        Mutant("mask ignored", without("mask")),
        Mutant("mask transposed", other_input("mask", lambda m: m.swapaxes(-1, -2) if m.shape[-1] > 1 else None)),
        Mutant(
            "future not hidden", lambda op, i, p: answer(op, i, {**p, "causal": False}) if p["causal"] else None
        ),
        Mutant("one future key seen", causal_with(2)),
        Mutant("keys and values exchanged", exchanged("k", "v")),
        Mutant("heads and tokens of k mixed", other_input("k", heads_as_tokens)),
        Mutant("batch of v reads the first item", other_input("v", first_of_batch)),
        Mutant("q silently float16", other_input("q", to_float16)),
    ),
    "timestep_embedding": (
        Mutant("sines first", sines_first),
        Mutant("sines and cosines interleaved", wrong_embedding(interleaved=True)),
        Mutant("divided by half - 1", wrong_embedding(last=1)),
        Mutant("t truncated to an integer", other_input("t", np.trunc)),
        Mutant("period 10000 always", other_params(max_period=lambda p: 10000.0)),
    ),
    "upsample_nearest": (
        _IMAGE,
        _BATCH,
        Mutant("shifted by a pixel", other_output(lambda y: np.roll(y, 1, axis=3))),
        Mutant("averaged with the neighbour", bilinear),
    ),
    "embedding": (
        Mutant("the next row", other_input("ids", lambda ids: np.maximum(ids - 1, 0))),
        Mutant("batch reads the first item", other_input("ids", first_of_batch)),
        *_block_mutants("weight"),
    ),
    "dequantize": (*_block_mutants("x"),),
}


def try_all(case: Case) -> list[Trial]:
    """Put a case to every mutant of its operation, judged as an engine that declares float32."""
    inputs = case.realize()
    params = complete(case.op, inputs, case.params)
    truth = run(case.op, Arithmetic(FLOAT64), inputs, params)["y"]
    honest = run(case.op, Arithmetic(FLOAT32), inputs, params)["y"]
    limits = bound(case.op, FLOAT32, inputs, params, truth)
    trials = []
    for mutant in MUTANTS[case.op]:
        with np.errstate(all="ignore"):
            wrong = mutant.wrong(case.op, inputs, params)
        # A bug that happens to give the honest bits is no bug in this case.
        if wrong is None or np.array_equal(wrong, honest):
            continue
        judged = judge([measure("y", wrong, truth, honest, limits, OPERATIONS[case.op].channel)])
        trials.append(Trial(case.name, mutant.name, not judged.passed, judged))
    return trials


def kill_table(trials: list[Trial]) -> str:
    """Markdown: for each mutant, how many of the cases that it applies to fail it."""
    lines = ["| operation | mutant | cases that fail it | of |", "|---|---|---|---|"]
    rows: dict[tuple[str, str], list[bool]] = {}
    for trial in trials:
        rows.setdefault((trial.case.partition("/")[0], trial.mutant), []).append(trial.killed)
    lines += [f"| {op} | {mutant} | {sum(killed)} | {len(killed)} |" for (op, mutant), killed in rows.items()]
    return "\n".join(lines) + "\n"
