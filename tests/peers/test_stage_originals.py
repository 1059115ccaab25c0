"""Stages beside original code that no engine of refsd runs: k-diffusion's steps, torch's interpolation."""

import itertools
from types import SimpleNamespace

import diffusers
import k_diffusion_alone
import numpy as np
import pytest
import torch
from diffusers_steps import SD, set_to, sigmas_of

from refsd.judges.stage import StageJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.schedules import SCHEDULES
from refsd.stages import STAGES

pytestmark = pytest.mark.peer
# NumPy 2 warns where diffusers takes a tensor for an array.
_COPIES = "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
JUDGE = StageJudge()


def _answered(case):
    inputs = case.realize()
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    return values, JUDGE.complete(case, inputs), JUDGE.answer(case, inputs, Arithmetic(FLOAT64))


def _of(stage: str, **wanted):
    cases = STAGES[f"stage/{stage}"].cases
    return [case for case in cases if all(case.params.get(name) == value for name, value in wanted.items())]


@pytest.mark.parametrize("case", _of("step_noise", kind="ancestral"), ids=lambda case: case.name)
def test_ancestral_noise_is_k_diffusions(case):
    """x of zeros under a model that answers with x: what is left of a step is the noise."""
    sampling = k_diffusion_alone.load("sampling")
    _, p, found = _answered(case)
    for i, (sigma, to) in enumerate(itertools.pairwise([*found["start"], 0.0])):
        down, up = sampling.get_ancestral_step(torch.tensor(sigma), torch.tensor(to), eta=p["eta"])
        assert found["end"][i] == pytest.approx(float(down), abs=1e-7)
        assert found["deviation"][i] == pytest.approx(float(up) * p["s_noise"], rel=1e-9)


@pytest.mark.parametrize("case", _of("step_noise", kind="churn"), ids=lambda case: case.name)
def test_churn_is_k_diffusions(case, monkeypatch):
    """sample_euler with noise of ones, a step at a time: the model is shown the churned x, and told its level."""
    sampling = k_diffusion_alone.load("sampling")
    monkeypatch.setattr(sampling, "torch", SimpleNamespace(**{**vars(torch), "randn_like": torch.ones_like}))
    _, p, found = _answered(case)
    shown = []

    def model(x, sigma):
        shown.append((float(x[0]), float(sigma[0])))
        return x

    churn = {name: p[name] for name in ("s_churn", "s_tmin", "s_noise")}
    x = torch.zeros(1, dtype=torch.float64)
    sigmas = torch.tensor(SCHEDULES["karras"](p["steps"], SD_LEVELS), dtype=torch.float64)
    sampling.sample_euler(model, x, sigmas, disable=True, s_tmax=p["s_tmax"] or float("inf"), **churn)
    np.testing.assert_allclose([sigma for _, sigma in shown], found["start"], rtol=1e-9)
    # The model answers with x, so that steps add nothing and noise adds up.
    added = np.diff([0.0, *(value for value, _ in shown)])
    np.testing.assert_allclose(added, found["deviation"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", _of("masked_step", engine="comfyui"), ids=lambda case: case.name)
def test_comfyuis_masks_are_torchs_interpolation(case):
    values, _, found = _answered(case)
    mask, N = torch.tensor(values["mask"]), len(values["x"])
    small = torch.nn.functional.interpolate(mask, size=values["x"].shape[2:], mode="bilinear")
    small = small.repeat([-(-N // len(small)), 1, 1, 1])[:N]
    np.testing.assert_allclose(found["latent_mask"], small.numpy(), atol=1e-12)


def test_flux2s_latents_are_torchs_batch_norm():
    (case,) = _of("latents", family="flux2")
    values, _, found = _answered(case)
    mean, variance = (torch.tensor(values[name]) for name in ("channel_mean", "channel_spread"))
    z = torch.tensor(values["moments"])[:, :3]
    packed = torch.nn.functional.pixel_unshuffle(z, 2)
    normed = torch.nn.functional.batch_norm(packed, mean, variance, eps=1e-4)
    np.testing.assert_allclose(found["latent"], normed.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings(_COPIES)
@pytest.mark.parametrize(
    ("levels", "scheduler", "config", "listed"),
    [
        ("sd", diffusers.EulerDiscreteScheduler, SD, 5),
        # diffusers shifts a flow's list, which a shift of 1 leaves alone, and adds its 0.
        ("flow", diffusers.FlowMatchEulerDiscreteScheduler, {"shift": 1.0}, 4),
    ],
)
def test_given_sigmas_and_their_timesteps_are_diffusers(levels, scheduler, config, listed):
    for case in _of("sigmas", schedule="given", levels=levels):
        _, p, found = _answered(case)
        shift = {"shift": p["shift"]} if levels == "flow" and p["engine"] == "diffusers" else {}
        set_up = set_to(scheduler, None, config | shift, sigmas=p["options"]["sigmas"][:listed])
        np.testing.assert_allclose(found["sigmas"], sigmas_of(set_up), rtol=1e-12)
        np.testing.assert_allclose(found["timesteps"], set_up.timesteps, rtol=1e-6)


@pytest.mark.filterwarnings(_COPIES)
def test_equal_timesteps_are_diffusers_karras():
    (case,) = _of("sigmas", steps=45)
    _, p, found = _answered(case)
    set_up = set_to(diffusers.DPMSolverMultistepScheduler, p["steps"], {**SD, "use_karras_sigmas": True})
    np.testing.assert_array_equal(found["timesteps"], set_up.timesteps)
    np.testing.assert_allclose(found["sigmas"], sigmas_of(set_up), rtol=1e-9)
