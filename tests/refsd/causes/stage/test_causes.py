"""Wrong answers of stages that no known bug explains are explained by mechanism x place, or not at all."""

import os

import numpy as np
import pytest
from forgetting import forgotten, listed

from refsd.cases import CASES
from refsd.causes.generic.solved_numbers import bits
from refsd.causes.stage.candidates import exchanged, settings
from refsd.causes.stage.scene import Scene
from refsd.causes.trajectory.diagnose import _sigma_causes, sigmas_of
from refsd.engines.reference import Reference
from refsd.golden.judge import Standard
from refsd.golden.rounding import Bound
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.noise import RNGS
from refsd.stages import STAGES
from refsd.stages.stage import StageInputs

pytestmark = pytest.mark.jitted


def _causes(name, change):
    case = CASES[name]
    inputs = case.realize()
    truth, honest = (Reference(numerics).run(case, inputs) for numerics in (FLOAT64, FLOAT32))
    found = {**honest, **change(case, {k: y.values() for k, y in inputs.items()}, dict(honest))}
    found = {k: np.asarray(y).astype(honest[k].dtype) for k, y in found.items()}
    return judges().of(case).explain(Standard(case, inputs, truth, honest, FLOAT32), found).causes


def _start(kept, factor):
    return lambda case, values, y: {"start": kept * values["latent"] + factor * y["noise"]}


def _of_ranks(scale):
    """Of a fused LoRA: each module's product times a share that is made of all alphas and all ranks."""

    def change(case, values, y):
        merged = values["weight"].copy()
        modules = list(case.params["rows"])
        alphas = [float(values[f"{module}.alpha"]) for module in modules]
        downs = [next(v for k, v in values.items() if k.startswith(module) and "down" in k) for module in modules]
        ups = [next(v for k, v in values.items() if k.startswith(module) and "up" in k) for module in modules]
        ranks = [len(down) for down in downs]
        for i, module in enumerate(modules):
            first, count = case.params["rows"][module]
            merged[first : first + count] += scale(i, alphas, ranks) * (ups[i] @ downs[i])
        return {"merged": merged}

    return change


def _of_channels(values, y, factor, more):
    """The latent's channels are of another scale: not normalised, or twice."""
    channel = np.arange(values["latent"].shape[1])[:, None, None]
    other = (1 + factor * channel) * values["latent"] + more * channel
    return {"start": y["start"] + 0.55 * (other - values["latent"])}


def _squared_factor(values, y):
    """The noise's factor to the fourth power, where the latent's is right."""
    both = np.stack([values["latent"].ravel(), y["noise"].ravel()], axis=1)
    kept, factor = np.linalg.lstsq(both, y["start"].ravel(), rcond=None)[0]
    return {"start": kept * values["latent"] + factor**4 * y["noise"]}


def _steps_counted(case, values, y):
    return {"timesteps": np.arange(len(y["timesteps"]))[::-1]}


def _without_a_mask(case, values, y):
    """One of the channels of a mask hides nothing."""
    cond = y["cond"].copy()
    cond[:, next(c for c in range(3, 19) if np.ptp(cond[:, c]))] = 1
    return {"cond": cond}


def _skipping(values, y, count):
    """The second picture's numbers begin so many later in its generator's stream."""
    noise = np.array(y["noise"])
    noise[1] = RNGS["cuda"](1).randn((noise[1].size + count,))[count:].reshape(noise[1].shape)
    return {"noise": noise, "start": y["start"] + np.float32(0.6) * (noise - y["noise"])}


def _later_draw(case, y, draw):
    """The last picture's noise is a later draw of its own generator."""
    noise, stream = np.array(y["noise"]), RNGS["cuda"](case.params["seed"] + 2)
    for _ in range(draw + 1):
        noise[2] = stream.randn(noise[2].shape)
    return {"noise": noise, "start": y["start"] + np.float32(0.7) * (noise - y["noise"])}


def _row_by_row(case, y):
    """Each picture's numbers are drawn in calls of a row."""
    streams = [RNGS["cuda"](case.params["seed"] + i) for i in range(3)]
    noise = np.stack([[[s.randn((7,)) for _ in range(5)] for _ in range(3)] for s in streams])
    return {"noise": noise, "start": y["start"] + np.float32(0.7) * (noise - y["noise"])}


def _redrawn(v, y):
    """The posterior's noise is not the case's."""
    logvar = v["moments"][:, v["moments"].shape[1] // 2 :].astype(np.float64)
    other = np.random.default_rng(3).standard_normal(v["noise"].shape) - v["noise"]
    return {"latent": y["latent"] + 0.18215 * np.exp(np.clip(logvar, -30, 20) / 2) * other}


def _first_order(v):
    """OFT's rotation is I + Q, at half the strength."""
    blocks, weight = next(y for name, y in v.items() if name.endswith("oft_blocks")), v["weight"]
    n, b, _ = blocks.shape
    turned = np.eye(b) + 0.5 * (blocks - blocks.swapaxes(1, 2))
    return {"merged": np.einsum("knm,kni->kmi", turned, weight.reshape(n, b, -1)).reshape(weight.shape)}


def _of_mu(y, mu):
    """The levels of a constant shift, where it should follow the number of tokens."""
    sigmas = np.exp(mu) / (np.exp(mu) + (1 / np.linspace(1, 1 / 5, 5) - 1))
    return {"sigmas": np.append(sigmas, 0), "timesteps": sigmas}


def _of_ends(low, high, rho=7.0):
    levels = (high ** (1 / rho) + np.linspace(0, 1, 6) * (low ** (1 / rho) - high ** (1 / rho))) ** rho
    return {"sigmas": np.append(levels, 0), "timesteps": np.log(levels) / 4}


def _deviations_of_pixels(values, y):
    """Guidance rescaled by the deviation of each pixel's channels."""
    plain = values["uncond"] + 7.5 * (values["cond"] - values["uncond"])
    std = [t.std(axis=1, keepdims=True) for t in (values["cond"], plain)]
    return {"guided": plain * (0.7 * std[0] / std[1] + 0.3)}


def _half_a_residual(values, y, reused):
    """A cache's reused steps add half of what the blocks added."""
    share = np.array(CASES["stage/caches/first-block"].params["path"])[:, None, None, None]
    start = values["x"] + values["head"] + share * (values["x_way"] + values["head_way"])
    right = y["cond_out"]
    return {"cond_out": np.where(reused[:, None, None, None] == 1, start + (right - start) / 2, right)}


def _drawn_anew(y, item):
    """One picture's noise is another's, and is in its start."""
    noise = np.array(y["noise"])
    noise[item] = np.random.default_rng(5).standard_normal(noise[item].shape)
    return {"noise": noise, "start": y["start"] + 0.6 * (noise - y["noise"])}


@pytest.mark.parametrize(
    ("case", "change", "cause"),
    [
        ("stage/noising/flow-a1111", _start(0.4, 0.6), "sigma is 0.6 for 0.45"),
        (
            "stage/noising/flow-a1111",
            lambda c, v, y: _of_channels(v, y, 0.25, 0.02),
            "latent: each channel is multiplied by 1 to 1.5, and 0 to 0.04 is added",
        ),
        ("stage/noising/ve-sdcpp", lambda c, v, y: {"start": 3 * y["start"]}, "start is 3 times what it should be"),
        ("stage/noising/flow-a1111", _start(1 - 0.1125, 0.1125), "sigma a quarter of it: 0.1125 for 0.45"),
        ("stage/prediction/v", lambda c, v, y: {"t": y["t"] * np.pi / 2}, "t is 1.5708 (pi / 2) times"),
        (
            "stage/sigmas/sd-exponential-n6",
            lambda c, v, y: {"sigmas": np.append(y["sigmas"][-2::-1], 0)},
            "reverse order",
        ),
        (
            "stage/clip_tokens/diffusers-long",
            lambda c, v, y: {"ids": np.roll(y["ids"], -1, 1)},
            "one before|next|first token",
        ),
        ("stage/noising/flow-seed-0", lambda c, v, y: _drawn_anew(y, 1), "noise, start at 1 of 3: other numbers"),
        ("stage/noising/flow-seed-0", lambda c, v, y: _skipping(v, y, 5), "the numbers from 5 on of cuda's seed 1"),
        (
            "stage/noising/flow-sdcpp",
            lambda c, v, y: _later_draw(c, y, 2),
            "item 2 is draw 2 of cuda's seed 1099511627783, not draw 0 of cuda's seed 1099511627783",
        ),
        (
            "stage/noising/flow-sdcpp",
            lambda c, v, y: _row_by_row(c, y),
            "item 1 is drawn row by row as picture 0 of cuda's seed 1099511627782",
        ),
        (
            "stage/adapter/oft-half",
            lambda c, v, y: _first_order(v),
            "a rotation by I + Q, without Cayley's transform",
        ),
        ("stage/latents/sd1", lambda c, v, y: _redrawn(v, y), "noise is another draw"),
        ("stage/noising/ve-sdcpp", lambda c, v, y: {"noise": np.zeros_like(y["noise"])}, "noise is 0 throughout"),
        ("stage/sigmas/flux-n5", lambda c, v, y: _of_mu(y, 0.83), "flux_mu is one number: 0.83 for"),
        ("stage/sigmas/edm-karras-n6", lambda c, v, y: _of_ends(0.03, 60.0), "0.03 for 0.002 and"),
        ("stage/noising/vp-diffusers", lambda c, v, y: _squared_factor(v, y), "(its fourth power)"),
        ("stage/sigmas/sd-discrete-n7", _steps_counted, "the index of each step, counted down to 0"),
        ("stage/adapter/lora-fused", _of_ranks(lambda i, a, r: a[i] / sum(r)), "divided by the sum of each rank"),
        ("stage/adapter/lora-fused", _of_ranks(lambda i, a, r: a[i] / r[-1]), "divided by the last one's rank"),
        ("stage/adapter/lora-fused", _of_ranks(lambda i, a, r: a[2] / r[2]), "the last one's alpha over rank"),
        (
            "stage/weights/fp8-scaled",
            lambda c, v, y: {"weight": y["weight"] / v["scale"] * 2 ** np.ceil(np.log2(v["scale"]))},
            "scale raised to the next power of two",
        ),
        ("stage/guidance/rescale", lambda c, v, y: _deviations_of_pixels(v, y), "rescaled pixel by pixel"),
        (
            "stage/caches/first-block",
            lambda c, v, y: _half_a_residual(v, y, y["cond_reused"]),
            "FirstBlockCache.reuse: the factor of self.others[call.condition]",
        ),
        (
            "stage/latents/sd3",
            lambda c, v, y: {"latent": y["latent"].reshape(-1, *y["latent"].shape[2:])},
            "as [32, 3, 5] for [2, 16, 3, 5]: item and channel joined",
        ),
    ],
)
def test_a_mechanism_is_named(case, change, cause):
    named = _causes(case, change)
    assert named and any(part in named[0] for part in cause.split("|")), named


def test_what_was_found_before_a_search_that_ends_early_is_told(monkeypatch):
    monkeypatch.setattr("refsd.causes.stage.causes._changed_formulas", lambda scene: os._exit(1))
    named = _causes(
        "stage/clip_tokens/diffusers-long", lambda c, v, y: {"ids": np.where(y["ids"] == 539, 7, y["ids"])}
    )
    assert named[0].startswith("ids is 7 where it should be 539"), named


@pytest.mark.parametrize(
    ("case", "change", "cause"),
    [
        (
            "stage/prediction/eps-high",
            lambda c, v, y: {"control": v["x"]},
            "control is x as it is given",
        ),
        (
            "stage/requests/adapter-then-none",
            lambda c, v, y: {"weight_2": y["weight_1"]},
            "weight_2 is what weight_1 should be: it stays as it was before",
        ),
        (
            "stage/noising/ve-sdcpp",
            lambda c, v, y: {"step_noise": np.stack([y["noise"], y["step_noise"][0]])},
            "step_noise: step 0 is what noise should be, step 1 is that of step 0",
        ),
        (
            "stage/noising/ve-sdcpp",
            lambda c, v, y: {"noise": y["noise"][[0, 0, 2]]},
            "noise: item 1 is that of item 0",
        ),
        # One rule of an engine's is told before the engine that has it with all others.
        (
            "stage/sigmas/strength-a1111-n7",
            lambda c, v, y: {"timesteps": np.rint(y["timesteps"])},
            "timesteps rounded to whole numbers",
        ),
        # The largest numbers are 1e5 times the smallest.
        ("stage/latents/flux", lambda c, v, y: {"latent": y["latent"] + 0.25}, "0.25 is added to latent"),
        (
            "stage/inpaint/fill-diffusers",
            _without_a_mask,
            ", which is 1 throughout",
        ),
        (
            "stage/adapter/lora-conv",
            lambda c, v, y: {"merged": v["weight"] + 1.37 * (y["merged"] - v["weight"])},
            "is multiplied by 1.37|what is added to weight is 1.37",
        ),
    ],
)
def test_a_mechanism_is_named_where_no_bug_is_listed(case, change, cause):
    with forgotten(listed()):
        named = _causes(case, change)
    assert named and any(part in named[0] for part in cause.split("|")), named


def test_a_cause_is_found_where_processes_cannot_be_forked(monkeypatch):
    monkeypatch.delattr(os, "fork")
    assert _causes("stage/noising/flow-a1111", _start(0.4, 0.6))[0] == "sigma is 0.6 for 0.45"


def test_matrices_in_the_other_order_of_memory():
    ids = np.arange(6).reshape(2, 3)
    tensors = {"a": 1.0 * ids, "b": np.arange(8.0).reshape(4, 2), "ids": ids}
    changes = {name: change for name, change in exchanged(tensors) if "other order of memory" in name}
    assert [name.partition(" read")[0] for name in changes] == ["a", "b", "a and b"]
    *_, both = changes.values()
    assert both.tensors is not None
    read = both.tensors(tensors)
    assert read is not None
    np.testing.assert_array_equal(read["a"], [[0, 2, 4], [1, 3, 5]])
    np.testing.assert_array_equal(read["b"], [[0, 4], [1, 5], [2, 6], [3, 7]])


def test_a_factor_must_gain_more_bits_than_it_has():
    """Some factor agrees with any error that is little more than is allowed."""
    truth = np.linspace(1, 2, 9)
    limits, inputs = {"y": Bound(np.full(9, 1e-4), np.full(9, 1e-5))}, StageInputs({}, {}, np.dtype(np.float64))
    for found, factor, gains in ((truth + 1.5e-4 * np.eye(9)[4], 1.0001, False), (3 * truth, 3.0, True)):
        scene = Scene(STAGES["stage/sigmas"], inputs, {"y": found}, {"y": truth}, {"y": truth}, limits)
        assert (scene.gain("y", factor * truth) > bits(factor)) == gains


def test_noise_is_not_explained():
    rng = np.random.default_rng(3)
    case = "stage/noising/ve-sdcpp"
    assert not _causes(
        case, lambda c, v, y: {"start": y["start"] * (1 + 0.1 * rng.standard_normal(y["start"].shape))}
    )


def test_slices_of_nowhere_are_not_explained():
    """One picture's noise is another's, and another's is none of all."""

    def change(case, values, y):
        noise = y["noise"][[0, 0, 2]]
        noise[2] = np.abs(np.random.default_rng(4).standard_normal(noise[2].shape))
        return {"noise": noise}

    assert not _causes("stage/noising/ve-sdcpp", change)


def test_the_search_changes_nothing():
    """The reference answers as before, after a search through its own formulas."""
    case = CASES["stage/sigmas/flux-n5"]
    before = Reference(FLOAT64).run(case, case.realize())
    _causes(case.name, lambda c, v, y: {"sigmas": y["sigmas"] * np.linspace(1, 0.97, len(y["sigmas"]))})
    after = Reference(FLOAT64).run(case, case.realize())
    assert all(np.array_equal(before[k], after[k]) for k in before)


def test_a_setting_may_be_rounded_to_a_smaller_type():
    rounded = {m.name: m.change for m in settings(STAGES["stage/prediction"], {"sigma": 0.73})}
    change = rounded["sigma rounded to bfloat16: 0.730469 for 0.73"].params
    assert change is not None and change({"sigma": 0.73}) == {"sigma": 187 / 256}
    assert not [m for m in settings(STAGES["stage/noising"], {"seed": 200}) if "bfloat16" in m.name]
    assert [*settings(STAGES["stage/noising"], {"seed": (1 << 40) + 5})]


@pytest.mark.parametrize("schedule", ["karras", "exponential", "simple"])
def test_another_range_of_sigmas_is_solved_from_its_own_ends(schedule):
    """Of rules that space levels between their ends; one that takes trained levels has none."""
    name = next(
        n for n, c in CASES.items() if c.op == "stage/sigmas" and n.startswith(f"stage/sigmas/sd-{schedule}")
    )

    def change(case, values, y):
        n = case.params["steps"]
        if schedule == "karras":
            return {"sigmas": np.append(np.linspace(10 ** (1 / 7), 0.1 ** (1 / 7), n) ** 7, 0)}
        if schedule == "exponential":
            return {"sigmas": np.append(np.geomspace(10, 0.1, n), 0)}
        return {"sigmas": np.append(np.linspace(10, 0.1, n) + 0.3 * (np.arange(n) % 2), 0)}

    causes = _causes(name, change)
    told = [
        cause for cause in causes if cause.startswith("the sigmas range from 10 to 0.1, not from 14.6146 to 0.02")
    ]
    assert len(told) == (schedule != "simple")


def test_a_formula_that_overflows_explains_nothing():
    """With exp(t) for exp(log sigma), levels up to e^999: no measure of what rounding may do to small ones."""
    case = CASES["trajectory/dpmpp2m/discrete"]
    sigmas = sigmas_of(case).copy()
    sigmas[1:6] *= [1.002, 0.997, 1.001, 0.9985, 1.003]
    assert _sigma_causes(case, sigmas, FLOAT32) == []


@pytest.mark.parametrize(("by", "words"), [(-1, "below"), (1, "above")])
def test_levels_of_another_trained_step_are_no_other_timesteps(by, words):
    """A schedule one off has these levels, too, and other timesteps, which are right here."""

    def change(case, values, y):
        levels = SD_LEVELS.sigmas
        shares = lambda t: np.where(t < 0, 1.0, 1 / (1 + levels[np.clip(t, 0, len(levels) - 1)] ** 2))
        own, to = (np.asarray(y[name]).astype(int) for name in ("timesteps", "previous"))
        return {"kept": shares(own + by), "kept_before": shares(to + by)}

    assert _causes("stage/steps/leading-n7", change)[0] == f"shares of the signal are the trained step's {words}"
    with forgotten(listed()):
        assert not any("leading" in cause for cause in _causes("stage/steps/leading-n7", change))
