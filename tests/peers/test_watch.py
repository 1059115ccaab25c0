"""refsd.watch: a living module's calls are judged in place; an honest one is right, a broken layer is placed."""

import copy

import pytest
import torch

import refsd
from refsd.cases import CASES
from refsd.engines.torch.engine import find, times_of
from refsd.engines.torch.models import MODELS, READERS
from refsd.engines.torch.state import living_component
from refsd.numerics.errors import BadInput
from refsd.weights import recipes

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore::FutureWarning")]
pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    def give(model, layout):
        path = folder / f"{model.family}-{model.type}-{model.quiet}"
        return path if path.exists() else recipes.make(model, path, layout)

    return {found.name: found.engine for found in find(model_files=give)}


def living(engine, name):
    """A model with its weights, and a function that calls it as its pipeline does."""
    case = CASES[name]
    model = engine._model(case)
    engine._loaded = None
    times = times_of(case)
    inputs = {key: engine._tensor(tensor.values(), key in times) for key, tensor in case.realize().items()}

    def call():
        with torch.inference_mode():
            return MODELS[case.op].run(model, inputs, case.params)

    return model, call


@pytest.mark.parametrize(
    "name",
    [
        *("sdxl/unet/between", "sd35-large/mmdit/last-step", "flux-dev/flux/reference", "flux-dev/flux/between"),
        *("chroma/chroma/masked", "zimage/zimage/masked", "clip-l/clip/ended", "t5xxl/t5/padded"),
        *("sd15/vae-decoder/wide", "sd15/vae-encoder/tall", "controlnet/controlnet/between"),
        *(
            "flux2-dev/flux2/reference",
            "flux3/flux3/references",
            "flux3-distilled/flux3/jump",
            "qwen-image-edit-2511/qwen-image/edit",
            "qwen-image21/qwen-image21/masked",
            "qwen3-4b/qwen3/padded",
            "mistral-small/mistral/padded",
        ),
    ],
)
@pytest.mark.parametrize("variant", ["torch", "torch-bf16"])
def test_an_honest_module_is_right(engines, name, variant):
    model, call = living(engines[variant], name)
    said = []
    with refsd.watch(model, show=said.append) as report:
        call()
        call()
    assert report.passed and report.unseen == 1, str(report)
    assert [judged.taps > 10 for judged in report.calls] == [True]
    assert f"{type(model).__name__}: " in said[0] and "1 further call not judged" in said[0]


def test_a_right_module_of_fewer_refiner_layers_is_known_without_a_warning(engines, recwarn):
    model, _ = living(engines["torch"], "zimage/zimage/masked")
    assert len(model.noise_refiner) > 1
    model.noise_refiner, model.context_refiner = model.noise_refiner[:1], model.context_refiner[:1]
    model.register_to_config(n_refiner_layers=1)
    assert living_component(model).name
    assert not [str(one.message) for one in recwarn if "missing" in str(one.message)]


def test_numbers_that_float16_does_not_hold_are_placed(engines):
    model, call = living(engines["torch-f16"], "flux-vae/vae-decoder/loud")
    with refsd.watch(model, show=None) as report:
        call()
    first = report.first
    assert first is not None and first.place == "decoder.up.0.block.0.nin_shortcut", str(report)
    assert first.module == "decoder.up_blocks.3.resnets.0.conv_shortcut"
    assert "beyond the range of these numerics in the honest run too" in first.reason


def _eps(model):
    model.encoder.layers[1].layer_norm1.eps = 1e-6


def _tanh(model):
    gate = model.down_blocks[1].attentions[0].transformer_blocks[0].ff.net[0]
    gate.gelu = lambda x: torch.nn.functional.gelu(x, approximate="tanh")


def _key_for_query(model):
    attention = model.transformer_blocks[1].attn
    key = attention.to_k
    attention.to_q.forward = lambda x: torch.nn.functional.linear(x, key.weight, key.bias)


def _noise(model):
    noise = torch.Generator().manual_seed(0)
    model.transformer_blocks[1].ff.net[2].register_forward_hook(
        lambda layer, x, y: y + 0.1 * torch.randn(y.shape, generator=noise)
    )


def _not_a_number(model):
    model.transformer_blocks[1].ff.net[2].register_forward_hook(lambda layer, x, y: y * float("nan"))


def _text_modulates_the_picture(model):
    of_text = model.early_stream_modulations["txt"].linear
    model.early_stream_modulations["image"].linear.forward = lambda x: torch.nn.functional.linear(x, of_text.weight)


BROKEN = {
    "modulations": (
        "flux3/flux3/references",
        _text_modulates_the_picture,
        "early_stream_modulations.image.lin",
        "",
    ),
    "eps": ("clip-l/clip/ended", _eps, "text_model.encoder.layers.1.layer_norm1", "eps ten times too small"),
    "tanh for erf": ("sdxl/unet/between", _tanh, "input_blocks.3.1.transformer_blocks.0.ff.net.2", "tanh for erf"),
    "key for query": ("sd35-large/mmdit/last-step", _key_for_query, "joint_blocks.1.x_block.attn.qkv", ""),
    "noise": ("sd35-large/mmdit/last-step", _noise, "joint_blocks.1.x_block.mlp.fc2", "no cause was found"),
    "NaN": ("sd35-large/mmdit/last-step", _not_a_number, "joint_blocks.1.x_block.mlp.fc2", "not finite"),
}


@pytest.mark.parametrize("bug", BROKEN)
def test_a_broken_layer_is_placed(engines, bug):
    name, break_it, place, words = BROKEN[bug]
    model, call = living(engines["torch"], name)
    break_it(model)
    with refsd.watch(model, show=None) as report:
        call()
    assert not report.passed and report.first is not None
    assert (report.first.place, report.first.margin > 1) == (place, True), str(report)
    assert (report.first.module and report.first.module in dict(model.named_modules())) or bug == "key for query"
    assert words in str(report)


def test_a_call_that_takes_long_says_that_no_cause_was_sought(engines, monkeypatch):
    monkeypatch.setattr("refsd.watching.layers._PATIENCE", 0.0)
    model, call = living(engines["torch"], "clip-l/clip/ended")
    _eps(model)
    with refsd.watch(model, show=None) as report:
        call()
    assert not report.passed and "no cause was sought" in str(report), str(report)


def test_nothing_stays_attached(engines):
    model, call = living(engines["torch"], "sd15/vae-decoder/wide")
    with refsd.watch(model, show=None) as report:
        pass
    assert not report.passed and "it was not called" in str(report)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())
    call()


def test_a_call_that_refsd_does_not_compute_is_said(engines):
    model, _ = living(engines["torch"], "sdxl/unet/between")
    with pytest.raises(TypeError), refsd.watch(model, show=None):
        model()
    x = torch.zeros(1, 4, 8, 8)
    more = {"attention_mask": torch.ones(1, 4)}
    with refsd.watch(model, show=None) as report, pytest.raises((RuntimeError, ValueError, TypeError)):
        model(x, 1, torch.zeros(1, 4, 3), **more)
    assert "attention_mask, which refsd does not compute" in str(report) or "exception" in str(report)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"kv_cache_mode": "cached"}, "from a cache: call the pipeline with use_kv_cache=False"),
        (
            {"img_mask": torch.ones(2, 13).bool()},
            "the call's img_shapes do not fit its",
        ),
        (
            {"img_shapes": [[(1, 2, 2), (1, 4, 8)]]},
            "the call's img_shapes do not fit its",
        ),
        ({"img_shapes": [[(1, 2, 2)] * 6]}, "the call has 5 pictures to edit; refsd takes 4"),
    ],
)
def test_calls_of_qwen_image21_that_are_not_whole(engines, more, says):
    model, _ = living(engines["torch"], "qwen-image21/qwen-image21/quiet")
    given = {
        "hidden_states": torch.ones(2, 32, 64),
        "encoder_hidden_states": torch.ones(2, 5, 128),
        "timestep": torch.ones(2),
        "img_shapes": [[(1, 4, 8)]],
        "img_mask": torch.arange(13).expand(2, -1) >= 5,
    }
    (reader,) = READERS[type(model).__name__]
    with pytest.raises(BadInput, match=says):
        reader.read(model, {**given, **more})
    read = reader.read(model, given)
    assert read.inputs["x"].shape == (2, 64, 4, 8) and "context_mask" not in read.inputs


def test_an_unknown_module_is_refused():
    known = r"refsd.watch knows no Linear; it knows .*UNet2DConditionModel"
    with pytest.raises(BadInput, match=known), refsd.watch(torch.nn.Linear(2, 2)):
        pass


def test_the_fixture_fails_the_test(pytester):
    """The fixture's own rule, without a model."""
    pytester.makeconftest('pytest_plugins = ["refsd.pytest_plugin"]')
    pytester.makepyfile(
        """
        import contextlib, sys, types
        class Report:
            passed = False
            def __str__(self): return "layer 7 is wrong"
        @contextlib.contextmanager
        def watch(module, calls, causes, show): yield Report()
        sys.modules["refsd.watching"] = types.SimpleNamespace(watch=watch)
        def test_it(refsd_watch): refsd_watch(None)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["*layer 7 is wrong*"])


# case, the block whose forward is replaced, the reference's name of it
BLOCKS = [
    ("flux-dev/flux/between", "transformer_blocks.0", "double_blocks.0"),
    ("flux-dev/flux/between", "single_transformer_blocks.0", "single_blocks.0"),
    ("sd35-large/mmdit/last-step", "transformer_blocks.0", "joint_blocks.0"),
    (
        "sdxl/unet/between",
        "down_blocks.1.attentions.0.transformer_blocks.0",
        "input_blocks.3.1.transformer_blocks.0",
    ),
    ("clip-l/clip/ended", "encoder.layers.0", "text_model.encoder.layers.0"),
]


def _replaced(model, name, change):
    """A forward that calls layers of its own, as a compiled or patched one does."""
    block = model.get_submodule(name)
    own = copy.deepcopy(block)

    def forward(*arguments, **named):
        y = own(*arguments, **named)
        return tuple(map(change, y)) if isinstance(y, tuple) else change(y)

    block.forward = forward


@pytest.mark.parametrize(("name", "block", "place"), BLOCKS)
def test_a_block_that_runs_without_its_layers_is_judged_by_its_output(engines, name, block, place):
    model, call = living(engines["torch"], name)
    _replaced(model, block, lambda y: y)
    with refsd.watch(model, show=None) as report:
        call()
    assert report.passed and f"not seen: {block} ran without its " in str(report), str(report)
    assert "its output is judged" in str(report)
    _replaced(model, block, lambda y: 1.1 * y)
    with refsd.watch(model, show=None) as report:
        call()
    assert report.first is not None and report.first.module == block, str(report)
    assert report.first.place == place or report.first.place.startswith(f"{place}.")
