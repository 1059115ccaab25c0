"""The noise levels of a diffusers folder: computed, or refused by name."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from refsd.numerics.errors import BadInput
from refsd.pipelines.conventions import CONVENTIONS
from refsd.pipelines.plan import unet_levels
from refsd.pipelines.prediction import PREDICTIONS
from refsd.pipelines.scheduler_config import scheduler_config
from refsd.samplers.levels import SD_LEVELS

SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scheduler").mkdir()

    def written(**config):
        (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
        return SimpleNamespace(path=tmp_path, extras=[], family=None)

    return written


def trained_levels(held, like, prediction="eps"):
    return unet_levels(CONVENTIONS[like], scheduler_config(held), prediction)


def test_stable_diffusions_own(folder, tmp_path):
    for like in ("sdcpp", "diffusers"):
        assert trained_levels(folder(**SD), like) is SD_LEVELS
        assert trained_levels(SimpleNamespace(path=tmp_path / "a.gguf"), like) is SD_LEVELS  # type: ignore[arg-type]


def test_what_is_left_out_is_diffusers_default(folder):
    kept = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))
    np.testing.assert_allclose(trained_levels(folder(), "diffusers").sigmas, np.sqrt(1 / kept - 1), rtol=1e-9)


def test_other_steps_and_betas_that_are_told(folder):
    held = folder(**SD, num_train_timesteps=50)
    assert trained_levels(held, "diffusers").sigmas.shape == (50,)
    told = trained_levels(folder(**SD, trained_betas=[0.1, 0.5]), "diffusers")
    np.testing.assert_allclose(told.sigmas, np.sqrt(1 / np.array([0.9, 0.45]) - 1), rtol=1e-14)
    no_signal = trained_levels(folder(**SD, rescale_betas_zero_snr=True), "diffusers")
    assert no_signal.sigmas[-1] == pytest.approx(4096, rel=1e-6)


def test_a_pipeline_steps_through_them(folder):
    held = folder(beta_schedule="squaredcos_cap_v2")
    assert trained_levels(held, "diffusers", "v").sigmas[-1] > 1000
    assert trained_levels(held, "diffusers", "edm_v") is PREDICTIONS["edm_v"][1]


def test_stable_diffusion_cpp_knows_one_kind(folder):
    with pytest.raises(BadInput, match=r"sigmas of 0\.0100005 to 157\.4.* in 1000 steps; .*say --like diffusers"):
        trained_levels(folder(beta_schedule="linear"), "sdcpp")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"beta_schedule": "scaled_liner"},
            r"is 'scaled_liner' \(did you mean \"scaled_linear\"\?\); expected one of",
        ),
        ({"beta_schedule": ["linear"]}, r"beta_schedule is \['linear'\]; expected one of linear, scaled_linear"),
        ({"beta_schedule": None}, "beta_schedule is None"),
        ({"num_train_timesteps": 1e9}, r"num_train_timesteps is 1000000000\.0"),
        ({"num_train_timesteps": 10**9}, "num_train_timesteps is 1000000000; expected 2 to 100000"),
        ({"num_train_timesteps": True}, "num_train_timesteps is True"),
        ({"beta_end": 1.5}, r"beta_start to beta_end is 0\.0001 to 1\.5"),
        ({"beta_start": "0.1"}, "beta_start to beta_end is '0.1' to 0.02"),
        ({"trained_betas": [0.1, "x"]}, "trained_betas: expected 2 to 100000 numbers"),
        ({"trained_betas": 3}, "trained_betas: expected 2 to 100000 numbers"),
        ({"trained_betas": [0.0, 0.5]}, "trained_betas: expected 2 to 100000 numbers"),
        ({"beta_start": 0.0}, r"beta_start to beta_end is 0\.0 to 0\.02"),
        ({"trained_betas": [0.5, 1e-20]}, "rising, finite sigmas expected"),
        ({"trained_betas": [1 - 1e-16] * 20}, "rising, finite sigmas expected"),
        ({"trained_betas": [1 - 1e-16] * 400}, "rising, finite sigmas expected"),
    ],
)
def test_what_is_refused(folder, config, says):
    with pytest.raises(BadInput, match=says):
        trained_levels(folder(**config), "diffusers")


def test_an_edm_schedulers_settings_are_not_ignored(folder):
    for config in (
        {"_class_name": "EDMEulerScheduler", "prediction_type": "epsilon", "sigma_data": 0.5},
        {"_class_name": "EulerDiscreteScheduler", "timestep_type": "continuous"},
    ):
        with pytest.raises(BadInput, match=r"an EDM model .*say --prediction edm_v"):
            scheduler_config(folder(**config)).prediction()
