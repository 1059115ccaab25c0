"""The noise levels of a diffusers folder: computed, or refused by name."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import small_pictures

from refsd.conventions import CONVENTIONS
from refsd.golden.case import ModelRecipe
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.noise_levels import unet_levels
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prediction import PREDICTIONS
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.scheduler_config import sample_sigmas, scheduler_config
from refsd.pipelines.settings import Settings
from refsd.samplers.levels import SD_LEVELS
from refsd.weights import open_checkpoint, recipes

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


def schedule(held, sampler, n=3, corrected=False):
    config = scheduler_config(held)
    return config.schedule(sampler, n, config.levels(), corrected)


@pytest.mark.parametrize(
    ("sampler", "config", "timesteps"),
    [
        ("euler", {}, [999, 499.5, 0]),
        ("euler", {"timestep_spacing": "leading"}, [666, 333, 0]),
        ("euler", {"timestep_spacing": "leading", "steps_offset": 2}, [668, 335, 2]),
        ("euler_a", {"timestep_spacing": "trailing", "use_karras_sigmas": True}, [999, 666, 332]),
        ("dpm++2m", {}, [999, 666, 333]),
        ("dpm++2m", {"timestep_spacing": "leading", "steps_offset": 1}, [751, 501, 251]),
        ("ddim_strided", {"clip_sample": False}, [666, 333, 0]),
        ("ddim_strided", {"clip_sample": False, "timestep_spacing": "linspace"}, [999, 500, 0]),
        ("pndm", {"skip_prk_steps": True, "steps_offset": 1}, [667, 334, 1]),
    ],
)
def test_timesteps(folder, sampler, config, timesteps):
    made = schedule(folder(**SD, **config), sampler)
    np.testing.assert_allclose(made.timesteps, timesteps, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(
        made.sigmas[:-1], np.interp(timesteps, np.arange(1000), SD_LEVELS.sigmas), rtol=1e-12
    )
    assert made.sigmas[-1] == (SD_LEVELS.sigmas[0] if sampler == "pndm" else 0)
    assert made.unit_noise == (sampler not in ("euler", "euler_a") or config.get("timestep_spacing") == "leading")


def test_a_pipeline_that_corrects_the_file(folder):
    """steps_offset and clip_sample, as StableDiffusionPipeline does."""
    held = folder(**SD, steps_offset=5, clip_sample=True)
    np.testing.assert_allclose(schedule(held, "ddim_strided", corrected=True).timesteps, [667, 334, 1])
    assert len(schedule(folder(**SD), "ddim_strided", corrected=True).sigmas) == 4


@pytest.mark.parametrize("sampler", ["euler", "dpm++2m"])
@pytest.mark.parametrize("flag", ["karras", "exponential", "beta"])
def test_sigmas_between_the_ends_of_the_spacing_or_the_model(folder, sampler, flag):
    made = schedule(folder(**SD, **{f"use_{flag}_sigmas": True, "timestep_spacing": "leading"}), sampler, 4)
    ends = (SD_LEVELS.sigmas[0], SD_LEVELS.sigmas[750 if sampler == "euler" else 999])
    np.testing.assert_allclose(made.sigmas[[3, 0]], ends, rtol=1e-12)
    if flag == "exponential":
        np.testing.assert_allclose(np.diff(np.log(made.sigmas[:-1]), 2), 0, atol=1e-12)
    integers = made.timesteps == np.rint(made.timesteps)
    assert integers.all() == (sampler == "dpm++2m")


@pytest.mark.parametrize(
    ("sampler", "config", "says"),
    [
        (
            "euler",
            {"timestep_spacing": "even"},
            "timestep_spacing is 'even'; expected one of linspace",
        ),
        ("euler", {"steps_offset": -1}, "steps_offset is -1; expected 0 to 999"),
        ("euler", {"steps_offset": True}, "steps_offset is True"),
        ("euler", {"steps_offset": 1000}, "steps_offset is 1000"),
        (
            "euler",
            {"use_karras_sigmas": True, "use_beta_sigmas": True},
            "use_karras_sigmas and use_beta_sigmas are",
        ),
        (
            "euler",
            {"interpolation_type": "log_linear"},
            "interpolation_type is 'log_linear', which refsd does not sa",
        ),
        ("euler", {"final_sigmas_type": "sigma_min"}, "final_sigmas_type is 'sigma_min', .*: say --scheduler"),
        ("dpm++2m", {"use_lu_lambdas": True}, "use_lu_lambdas is True"),
        ("dpm++2m", {"lambda_min_clipped": -5.1}, "lambda_min_clipped is -5.1"),
        ("ddim_strided", {}, "clip_sample is True"),
        ("pndm", {}, "skip_prk_steps is False"),
        (
            "ddim_strided",
            {"clip_sample": False, "rescale_betas_zero_snr": True, "timestep_spacing": "trailing"},
            "starts at timestep 999, where sigma is infinite: say --sampling-method euler",
        ),
        ("euler", {"num_train_timesteps": 2}, "--steps 3: .* has 2 timesteps"),
    ],
)
def test_timesteps_that_are_refused(folder, sampler, config, says):
    with pytest.raises(BadInput, match=says):
        schedule(folder(**SD, **config), sampler)


def test_the_sampler_of_a_class(folder):
    held = {"skip_prk_steps": True}
    for name, config, sampler in (
        ("DDIMScheduler", {}, "ddim_strided"),
        ("PNDMScheduler", held, "pndm"),
        ("PNDMScheduler", held | {"prediction_type": "v_prediction"}, "pndm_v"),
        ("DPMSolverMultistepScheduler", {"solver_order": 2}, "dpm++2m"),
        ("UniPCMultistepScheduler", {}, None),
    ):
        assert scheduler_config(folder(_class_name=name, **config)).sampler() == sampler
    assert scheduler_config(folder()).sampler() is None
    with pytest.raises(BadInput, match=r"solver_order is 3, .*: name a sampler"):
        scheduler_config(folder(_class_name="DPMSolverMultistepScheduler", solver_order=3)).sampler()


def test_timesteps_of_a_flow_are_not_read(folder):
    scheduler_config(folder(use_karras_sigmas=False, shift_terminal=None)).check_flow("flow_uniform")
    for config in ({"use_karras_sigmas": True}, {"shift_terminal": 0.1}, {"stochastic_sampling": True}):
        with pytest.raises(BadInput, match=f"{next(iter(config))} is .*: say --scheduler"):
            scheduler_config(folder(**config)).check_flow("flow_uniform")


@pytest.mark.parametrize(
    "sigmas", [[], [0.5, 0.5], [1.0, 0.0], [1.5, 0.5], [1, "0.5"], [True, 0.5], 0.5, {}, [1.0, float("nan")]]
)
def test_noise_levels_of_steps_that_are_refused(tmp_path, sigmas):
    (tmp_path / "model_index.json").write_text(json.dumps({"sample_sigmas": sigmas}))
    with pytest.raises(BadInput, match=r"sample_sigmas is .*; expected falling numbers from 1 to above 0"):
        sample_sigmas(SimpleNamespace(path=tmp_path))  # type: ignore[arg-type]


def test_noise_levels_of_the_steps(folder, tmp_path):
    """A folder's, shifted as its scheduler says, unless the user names a schedule; another count is refused."""
    held = folder(shift=2.0, shift_terminal=0.02)
    assert sample_sigmas(held) == ()
    whole = open_checkpoint(None, small_pictures.files(tmp_path, "qwen-image21"))
    pipe = open_pipeline(whole, Tokenizers(), Arithmetic(FLOAT64))
    pipe = pipe._replace(checkpoint=SimpleNamespace(path=held.path))
    settings = Settings("", width=32, height=48, like="diffusers")
    assert resolve(pipe, settings).schedule == "flow_terminal"
    (tmp_path / "model_index.json").write_text(json.dumps({"sample_sigmas": [1, 0.75, 0.25]}))
    with pytest.raises(BadInput, match=r"shift_terminal is 0\.02, which refsd does not sample: say --scheduler"):
        resolve(pipe, settings)
    folder(shift=2.0)
    plan = resolve(pipe, settings)
    assert (plan.schedule, plan.steps) == ("sample_sigmas", 3)
    np.testing.assert_allclose(plan.sigmas, [1, 1.5 / 1.75, 0.5 / 1.25, 0], rtol=1e-15)
    assert resolve(pipe, settings._replace(steps=3)).steps == 3
    for more in ({"schedule": "flow_uniform", "steps": 5}, {"like": "sdcpp", "steps": 5}):
        assert len(resolve(pipe, settings._replace(**more)).sigmas) == 6
    with pytest.raises(BadInput, match=r"--steps 5: .* of 3 steps, its sample_sigmas: leave --steps out"):
        resolve(pipe, settings._replace(steps=5))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return recipes.make(ModelRecipe("sd15", "f16", True), tmp_path_factory.mktemp("folder") / "model", "diffusers")


@pytest.mark.jitted
def test_a_plan_of_a_folder(model):
    """Its class and its timesteps, unless the user names others, or another engine draws."""
    file = model / "scheduler" / "scheduler_config.json"
    config = {"_class_name": "DDIMScheduler", **SD, "timestep_spacing": "trailing", "set_alpha_to_one": False}
    file.write_text(json.dumps(config))
    pipe = open_pipeline(open_checkpoint(model), Tokenizers(), Arithmetic(FLOAT64))
    settings = Settings("", width=64, height=64, steps=4, like="diffusers")
    plan = resolve(pipe, settings)
    assert (plan.sampler, plan.schedule) == ("ddim_strided", "trailing")
    np.testing.assert_array_equal(plan.sigmas, SD_LEVELS.sigmas[[999, 749, 499, 249, 0]])
    assert plan.last_scale == 1 / np.sqrt(1 + SD_LEVELS.sigmas[0] ** 2)
    assert plan.first_noise == np.sqrt(1 + SD_LEVELS.sigmas[999] ** 2)
    assert [plan.levels.to_t(sigma) for sigma in plan.sigmas[:-1]] == [999, 749, 499, 249]
    chosen = resolve(pipe, settings._replace(schedule="leading", sampler="euler"))
    assert (chosen.sampler, chosen.schedule, chosen.last_scale) == ("euler", "leading", 1.0)
    np.testing.assert_allclose(chosen.sigmas[:-1], SD_LEVELS.sigmas[[751, 501, 251, 1]], rtol=1e-12)
    sdcpp = resolve(pipe, settings._replace(like="sdcpp"))
    assert (sdcpp.sampler, sdcpp.schedule, sdcpp.sigmas[-1]) == ("euler_a", "discrete", 0.0)
    file.write_text(json.dumps(config | {"_class_name": "PNDMScheduler", "skip_prk_steps": True}))
    assert resolve(pipe, settings).sampler == "pndm"
    image = ConditioningImages(init=np.zeros((1, 3, 64, 64)))
    with pytest.raises(BadInput, match="pndm does not start from --init-img: say --sampling-method euler"):
        resolve(pipe, settings, image)
    assert resolve(pipe, settings._replace(strength=1), image).sampler == "pndm"
