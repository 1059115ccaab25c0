"""Bugs of samplers, guidance, masks and files that no case showed when drawn, and that one shows since."""

import itertools

import numpy as np
from injected_files import product_of
from injected_steps import sampled
from injection import Bug, Injection, wrong_answer, wrong_parts

from refsd.trajectory import model as analytic
from refsd.trajectory.run import sigmas_of

# --- samplers ----------------------------------------------------------------------------------------------------


def _towards_the_picture(model, x, sigmas, draws, case):
    """DDIM's direction is the network's output, a picture: sqrt(a) x0 + sqrt(1 - a) x0, here over sqrt(a)."""
    for sigma, to in itertools.pairwise(sigmas.tolist()):
        x = model(x, sigma) * x.dtype.type(1 + to)
    return x


def _euler(case, inputs, y, answers, ahead) -> dict[str, np.ndarray]:
    """answers: x, sigma, number of the call -> denoised, without the prompt; ahead: those, x, sigma, next -> x"""
    dtype, sigmas = y["x"].dtype, sigmas_of(case)
    x, found = inputs["noise"].values().astype(dtype)[0] * dtype.type(sigmas[0]), []
    for i, (sigma, to) in enumerate(itertools.pairwise(sigmas.tolist())):
        both = tuple(one.astype(dtype) for one in answers(x, sigma, i))
        found.append((x, *both))
        x = ahead(*both, x, sigma, to).astype(dtype)
    columns = [np.stack(column) for column in zip(*found, strict=True)]
    named = dict(zip(("x", "denoised", "uncond"), columns, strict=True))
    return {**{name: named[name] for name in y if name in named}, "sigmas": sigmas, "latent": x}


def _first_call_unguided(case, inputs, y):
    """The first call asks for the prompt alone."""

    def answers(x, sigma, i):
        return analytic.denoised(x, sigma, 1.0 if i == 0 else case.params["guidance"]), analytic.uncond(x, sigma)

    return _euler(case, inputs, y, answers, lambda y, _, x, sigma, to: y + (x - y) * (to / sigma))


def _one_call_at_1(case, inputs, y):
    """At a guidance of 1 the call without the prompt is left out, and its answer taken to be the other's."""

    def answers(x, sigma, i):
        return (analytic.cond(x, sigma),) * 2

    return _euler(case, inputs, y, answers, lambda y, without, x, sigma, to: y + (x - without) * (to / sigma))


def _given_as_they_are(params, card, levels):
    """The list's timesteps are divided by 1000, and the shift is passed by."""
    return lambda n: np.array(params["options"]["sigmas"])


def _shifted_again(params, card, levels):
    """A list of sigmas is shifted, which has them as they are wanted."""
    given = np.array(params["options"]["sigmas"])
    return lambda n: levels.shift * given / (1 + (levels.shift - 1) * given)


def _a_share_of_the_steps(case, values, y):
    """The model is told 1 - i / n, whatever the shift makes of it."""
    n = case.params["steps"]
    return {"timesteps": 1000 * (1 - np.arange(n) / n)}


def _without_the_quantiles(params, card, levels):
    """Ideogram's schedule is a line, shifted."""
    return lambda n: levels.shift * np.linspace(1, 0, n + 1) / (1 + (levels.shift - 1) * np.linspace(1, 0, n + 1))


def _between_the_unshifted(params, card, levels):
    """A schedule on sigmas lies between a flow's levels before the shift."""
    low = 1 / levels.steps
    root = lambda n: np.linspace(1, low ** (1 / 7), n) ** 7
    return lambda n: np.append(root(n), 0.0)


# --- pictures ----------------------------------------------------------------------------------------------------


def _at(x, high, wide):
    rows, columns = (np.arange(new) * old // new for new, old in zip((high, wide), x.shape[2:], strict=True))
    return x[:, :, rows[:, None], columns]


def _sides_inverted(case, values, y):
    """The width is what the height should be, and the height what the width should be."""
    return {"shown": _at(values["picture"], *y["shown"].shape[:1:-1])}


def _not_cut(case, values, y):
    """The picture is stretched to whole tokens."""
    return {"shown": _at(values["picture"], *y["shown"].shape[2:])}


# --- files -------------------------------------------------------------------------------------------------------


def _peft_modules(values) -> dict[str, dict[str, np.ndarray]]:
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, y in values.items():
        if name != "weight":
            module, half, _ = name.rsplit(".", 2)
            found.setdefault(module, {})[{"lora_A": "down", "lora_B": "up"}[half]] = y
    return found


def _merged(case, values, place, rank):
    """place: a part's first row, the layer's inputs -> where it is put; rank: a part's own -> another"""
    weight = values["weight"].copy()
    for module, parts in _peft_modules(values).items():
        first, count = case.params["rows"][module]
        first = place(first, weight.shape[1])
        delta = case.params["settings"]["lora_alpha"] / rank(len(parts["down"])) * product_of(parts)
        end = min(first + count, len(weight))
        weight[first:end] += delta[: end - first]
    return {"merged": weight}


def _rows_by_the_inputs(case, values, y):
    """Keys and values are looked for behind as many queries as the layer has inputs."""
    return _merged(case, values, lambda first, inputs: first and first - 24 + inputs, lambda rank: rank)


def _networks_rank(case, values, y):
    """Alpha is divided by the rank of the network, not by that of the module."""
    return _merged(case, values, lambda first, inputs: first, lambda rank: case.params["settings"]["r"])


SINCE_STEPS: dict[str, Injection] = {
    "ty-smp-03": sampled(
        ("euler/karras", "dpm++2m/karras")[:1],
        r"latent|\bx\b|step",
        "denoised|direction|picture|weight",
        _towards_the_picture,
    ),
    "eh-cfg-01": Injection(
        ("trajectory/euler/karras",),
        Bug(answer=_first_call_unguided),
        r"latent|\bx\b|step|denoised|call",
        "no guidance in the first call",
    ),
    "xv-smp-08": Injection(
        ("trajectory/euler_cfg_pp/karras-scale-1",),
        Bug(answer=_one_call_at_1),
        r"latent|\bx\b|step|uncond|call",
        "uncond is what the prompt gives|uncond.*(prompt|cond)",
    ),
    "fi-cfg-04": wrong_answer(
        "guidance/cfg-0",
        "guided",
        "0|prompt alone|cond|no guidance|left out|scale",
        lambda case, values, y: {"guided": values["cond"]},
    ),
    "xv-smp-09": wrong_parts(
        "sigmas/flow-given-n4",
        "sigmas|timesteps",
        "shift",
        spacing=_shifted_again,
    ),
    "sn-smp-03": wrong_parts(
        "sigmas/flow-logit-normal-n7",
        "sigmas",
        "flow_uniform|simple|uniform|computed as|line",
        spacing=_without_the_quantiles,
    ),
    "sn-smp-04": wrong_answer(
        "sigmas/flow-uniform-n8",
        "timesteps",
        "before the shift|share|1 - i|i / n",
        _a_share_of_the_steps,
    ),
    "fi-smp-04": wrong_parts(
        "sigmas/flow-karras-n6",
        "sigmas",
        "shift|range|lowest|least|last",
        spacing=_between_the_unshifted,
    ),
    "eh-smp-03": wrong_parts(
        "prediction/flow-reference",
        "reference",
        "edit.*denoised|denoised, too",
        kept=lambda reference, denoised: denoised,
    ),
    "eh-lora-03": wrong_parts(
        "adapter/lora-two-streams",
        "merged",
        "other stream",
        belongs=lambda elsewhere, module: True,
    ),
    "sn-req-01": wrong_parts(
        "adapter/lora-other-transformer",
        "merged",
        "other (stream or )?transformer",
        belongs=lambda elsewhere, module: True,
    ),
    "eh-ld-02": wrong_parts(
        "weights/fp8-fused-own",
        "weight",
        r"(one|first|largest|same|single).*scale|own scale|scale.*(all parts|first|largest|max)",
        own=lambda scales: [max(scales, key=np.max)] * len(scales),
    ),
    "fi-lora-02": wrong_parts(
        "adapter/lora-peft-bias",
        "bias",
        "bias left out|bias",
        bias=lambda adapter, bias, strength: None,
    ),
    "fi-lora-03": wrong_parts(
        "adapter/lora-peft-rslora",
        "merged",
        "root|rslora",
        adapter=lambda adapter, parts: adapter._replace(scale=6 / 4),
    ),
    "nt-smp-02": wrong_parts(
        "sigmas/flow-given-shifted-n4",
        "sigmas|timesteps",
        "not shifted|no shift|shift.*(1\\b|left out|missing)",
        spacing=_given_as_they_are,
    ),
    "ty-inp-01": wrong_parts(
        "inpaint/inpaint-grey",
        "mask|shown|cond|kept",
        "grey|black or white|not (binary|rounded)",
        white=lambda mask: mask,
    ),
    "ty-inp-02": wrong_parts(
        "inpaint/inpaint-grey",
        "mask|shown|cond|kept",
        "all but black|not 0|any grey|non-?zero",
        white=np.ceil,
    ),
    "ty-inp-03": wrong_answer("reference/flux2-dev-*", "shown", "height and width", _sides_inverted),
    "ty-inp-04": wrong_answer("reference/flux2-dev-diffusers", "shown", "not? cut|neither cut|resized", _not_cut),
    "nt-lora-01": wrong_answer(
        "adapter/lora-peft-fused",
        "merged",
        r"rank|\b8\b|alpha",
        _networks_rank,
    ),
    "nt-lora-03": wrong_answer(
        "adapter/lora-peft-fused",
        "merged",
        "rows|first|place|begin|apart|inputs|moved|order",
        _rows_by_the_inputs,
    ),
}
