"""Caches at a denoiser's calls, on small models of several families."""

import numpy as np
import pytest
from small_pictures import call, files, pipeline

from refsd.caches import read_cache
from refsd.components import COMPONENTS
from refsd.module import Module
from refsd.numerics.errors import BadInput
from refsd.pipelines import txt2img
from refsd.pipelines.guidance_rule import GuidanceRule
from refsd.pipelines.plan import resolve
from refsd.pipelines.png import parameters_text
from refsd.pipelines.settings import Settings, read_cache_mode

SETTINGS = Settings("a lovely cat", "ugly", 32, 32, steps=6, sampler="euler", cfg_scale=3.0, seed=3)


def _calls(pipe, cache):
    """-> name -> array that `sample` tells of"""
    plan, heard = resolve(pipe, SETTINGS._replace(cache=cache)), {}
    conditioning = txt2img.encode(pipe, plan)
    for _ in range(2):  # the second picture begins with nothing kept
        heard.clear()
        txt2img.sample(pipe, plan, conditioning, 3, listener=lambda name, x: heard.update({name: np.array(x)}))
    return heard


@pytest.mark.parametrize("family", ["flux-dev", "qwen-image", "zimage", "flux2-klein"])
@pytest.mark.usefixtures("letters")
def test_the_blocks_of_a_reused_step_are_not_run(folder, family):
    """MagCache with a table that never errs reuses all steps but the first."""
    pipe = pipeline(folder, family)
    first = COMPONENTS[pipe.denoiser.name].stack.lists[0]
    products = []

    class Counted(Module):
        def linear(self, name, x):
            products.append(self.prefix) if self.prefix.startswith(f"{first}.") else None
            return super().linear(name, x)

    m = pipe.denoiser.module
    pipe = pipe._replace(denoiser=pipe.denoiser._replace(module=Counted(m.weights, m.arithmetic, m.prefix)))
    heard = _calls(pipe, read_cache("--cache-mode", "magcache", "ratios=1,most=1000,retention=0"))
    for which in ("cond", "uncond"):
        assert [int(heard[f"calls.{i}.{which}.reused"]) for i in range(6)] == [0, 1, 1, 1, 1, 1]
    with_cache = len(products)
    _calls(pipe, None)
    assert len(products) - with_cache == 6 * with_cache  # in each of six steps, not in the first alone
    assert np.isfinite(heard["latent"]).all()
    assert pipe.denoiser.module.taps is None


@pytest.mark.parametrize(
    ("family", "cache", "changed", "says"),
    [
        ("sd15", "magcache:ratios=1", {}, "has no stack of blocks"),
        ("qwen-image", "teacache:", {}, "FLUX.1's first block alone"),
        ("qwen-image", "magcache:", {}, "its table was measured on FLUX.1; give"),
        ("flux-dev", "easycache:", {"sampler": "heun"}, "heun calls the network 11 times in 6 steps"),
        ("flux-dev", "easycache:", {"guidance_rule": GuidanceRule(slg_scale=1.0, skip_layers=(0,))}, "skip-layer"),
    ],
)
def test_what_a_model_or_a_sampler_cannot_have_is_refused(folder, family, cache, changed, says):
    settings = SETTINGS._replace(cache=read_cache("--cache-mode", *cache.split(":")), **changed)
    with pytest.raises(BadInput) as refused:
        resolve(pipeline(folder, family), settings)
    assert says in str(refused.value)


def test_the_settings_and_the_picture_name_the_cache(folder):
    pipe = pipeline(folder, "flux-dev")
    plan = resolve(pipe, SETTINGS._replace(cache=read_cache_mode("easycache", "threshold=0.5")))
    assert plan.record()["cache"] == "easycache:threshold=0.5 start=0.15 end=0.95"
    assert "Cache: easycache:threshold=0.5 start=0.15 end=0.95" in parameters_text(plan, 1, {})
    assert "cache" not in resolve(pipe, SETTINGS).record()
    assert read_cache_mode(None, "") is None
    with pytest.raises(BadInput, match="--cache-option start=0: give the cache with --cache-mode"):
        read_cache_mode(None, "start=0")


@pytest.mark.usefixtures("letters")
def test_the_command_says_how_many_steps_were_reused(folder, tmp_path):
    parts = [word for pair in files(folder / "flux-dev", "flux-dev").items() for word in pair]
    size = ["-W", 32, "-H", 32, "--steps", 5, "-o", tmp_path / "cat.png"]
    result = call("-p", "a cat", *parts, *size, "--cache-mode", "taylorseer", "--cache-option", "before=2")
    assert result.exit_code == 0, result.output
    assert "taylorseer:interval=5 before=2 after=1000 order=1: 2 of 5 steps reused" in result.stderr
