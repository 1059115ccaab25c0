"""Known bugs of normalisations."""

import numpy as np

from refsd.golden.mutants.mutant import (
    BATCH,
    EPS,
    NO_WEIGHT,
    ZERO_BIAS,
    Mutant,
    Wrong,
    answer,
    other_params,
)


def normalised(x, axis, eps, ddof=0, one_pass=False):
    x = x.astype(np.float32)
    mean = x.mean(axis=axis, keepdims=True)
    if one_pass:
        variance = np.maximum((x * x).mean(axis=axis, keepdims=True) - mean * mean, 0)
    else:
        variance = x.var(axis=axis, keepdims=True, ddof=ddof)
    return (x - mean) / np.sqrt(variance + np.float32(eps))


def wrong_norm(**how) -> Wrong:
    def wrong(op, inputs, params):
        x = inputs["x"].values()
        if op == "group_norm":
            y = normalised(x.reshape(x.shape[0], params["num_groups"], -1), 2, params["eps"], **how).reshape(
                x.shape
            )
            return y * inputs["weight"].values()[:, None, None] + inputs["bias"].values()[:, None, None]
        y = normalised(x, -1, params["eps"], **how)
        if "weight" in inputs:
            y = y * inputs["weight"].values() + inputs["bias"].values()
        return y

    return wrong


def centred_rms(op, inputs, params):
    return normalised(inputs["x"].values(), -1, params["eps"]) * inputs["weight"].values()


_ONE_PASS = Mutant("variance as E[x^2] - E[x]^2 in float32", wrong_norm(one_pass=True))


_UNBIASED = Mutant("variance divided by n - 1", wrong_norm(ddof=1))


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "group_norm": (
        EPS,
        _ONE_PASS,
        _UNBIASED,
        ZERO_BIAS,
        NO_WEIGHT,
        Mutant("a group a channel", lambda op, i, p: answer(op, i, {**p, "num_groups": i["x"].shape[1]})),
        Mutant("one group", other_params(num_groups=lambda g: 1)),
        BATCH,
    ),
    "layer_norm": (EPS, _ONE_PASS, _UNBIASED, ZERO_BIAS, NO_WEIGHT, BATCH),
    "rms_norm": (EPS, NO_WEIGHT, Mutant("mean subtracted", centred_rms), BATCH),
}
