"""Pipelines of diffusers are adopted: a case for each network that their run calls, and one for their levels."""

import json
import re

import diffusers
import msgspec
import pytest
import torch
from record_tokenizers import t5
from test_conditioning import QWEN3_TEMPLATE, clip_pair, qwen2
from test_models_qwen_image import peer_qwen_image
from test_models_qwen_vl import peer_config
from test_models_vae_wan import peer_vae as peer_wan_vae
from test_models_zimage import peer_zimage
from tiny_tokenizers import bytes_trained, unigram_trained
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
)
from typer.testing import CliRunner

from refsd.adoption.constants import cases_of
from refsd.adoption.folder import named
from refsd.adoption.noise_levels import case_of
from refsd.adoption.pipelines import noise_levels, opened, recorded
from refsd.cases import CASES
from refsd.cli import app
from refsd.engines.reference import Reference
from refsd.golden import conform
from refsd.goldens.judging import runner
from refsd.models.qwen_vl import QWEN2_5_SECTIONS, qwen2_5_vl
from refsd.models.qwen_vl.network import Qwen25Size
from refsd.models.vae_wan.network import WanVAESize
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import TORCH_F32
from tests.refsd.adoption.conftest import forgotten  # noqa: F401

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]

LEVELS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def tiny_vae(latents=4):
    return diffusers.AutoencoderKL(
        block_out_channels=(8, 8, 8, 16),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=latents,
    )


def sd15(scheduler=None):
    tokenizer, eos = clip_pair(True)
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        intermediate_size=33,
        num_hidden_layers=2,
        num_attention_heads=2,
        eos_token_id=eos,
        pad_token_id=eos,
    )
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(16, 32),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=24,
        attention_head_dim=2,
    )
    euler = diffusers.EulerDiscreteScheduler(**LEVELS, steps_offset=1, timestep_spacing="leading")
    return diffusers.StableDiffusionPipeline(
        vae=tiny_vae(),
        text_encoder=CLIPTextModel(config),
        tokenizer=tokenizer,
        unet=unet,
        scheduler=scheduler or euler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def sd15_as_released():
    """The scheduler of its folder: PNDM, whose last level is above 0."""
    return sd15(diffusers.PNDMScheduler(**LEVELS, steps_offset=1, skip_prk_steps=True, set_alpha_to_one=False))


def flux_vae():
    vae = tiny_vae(16)
    vae.register_to_config(scaling_factor=0.3611, shift_factor=0.1159)
    return vae


def t5_pair():
    vocab = unigram_trained()
    config = T5Config(vocab_size=len(vocab), d_model=40, d_kv=8, d_ff=33, num_layers=2, num_heads=2)
    return T5EncoderModel(config), t5(vocab)


def qwen_tokenizer():
    tokenizer = qwen2(*bytes_trained())
    tokenizer.chat_template = QWEN3_TEMPLATE
    return tokenizer


def aura_flow():
    """A pipeline without a page; its text encoder is UMT5, which refsd has, its transformer is not."""
    encoder, tokenizer = t5_pair()
    transformer = diffusers.AuraFlowTransformer2DModel(
        sample_size=32,
        in_channels=4,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=40,
        caption_projection_dim=32,
        pos_embed_max_size=1024,
    )
    return diffusers.AuraFlowPipeline(
        tokenizer=tokenizer,
        text_encoder=encoder,
        vae=tiny_vae(),
        transformer=transformer,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=1.73),
    )


def flux():
    transformer = diffusers.FluxTransformer2DModel(
        in_channels=64,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=40,
        pooled_projection_dim=24,
        guidance_embeds=True,
        axes_dims_rope=(4, 6, 6),
    )
    clip, (encoder, tokenizer) = sd15(), t5_pair()
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    return diffusers.FluxPipeline(
        scheduler, flux_vae(), clip.text_encoder, clip.tokenizer, encoder, tokenizer, transformer
    )


def zimage():
    tokenizer = qwen_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=40,
        intermediate_size=33,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    network = peer_zimage(1, (4, 6, 6), 1, 1, 40)
    return diffusers.ZImagePipeline(scheduler, flux_vae(), Qwen3Model(config), tokenizer, network)


def qwen_image():
    tokenizer = qwen_tokenizer()
    size = Qwen25Size(256, 2, 2, 1, 128, 20, len(tokenizer))
    encoder = Qwen2_5_VLForConditionalGeneration(peer_config(qwen2_5_vl, size, QWEN2_5_SECTIONS, 1e6)).eval()
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
    )
    vae = peer_wan_vae(WanVAESize(8, (8, 16, 32, 32), 1))
    return diffusers.QwenImagePipeline(
        scheduler, vae, encoder, tokenizer, peer_qwen_image(1, (4, 6, 6), 1, context=256)
    )


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.mark.parametrize(
    ("build", "network", "levels"),
    [
        (sd15, "unet", ("sd", "leading", None)),
        (sd15_as_released, "unet", ("sd", "leading", None)),
        (aura_flow, "transformer", ("flow", "flow_linspace", 1.73)),
        (zimage, "transformer", ("flow", "flow_uniform", 3.0)),
    ],
)
def test_its_networks_and_levels_are_cases(tmp_path, build, network, levels, forgotten):  # noqa: F811
    """Z-Image's text encoder would return keys and values for a next token, which torch cannot export."""
    parts = ["text_encoder", network, "vae.decode"]
    torch.manual_seed(0)
    pipe, out = build(), tmp_path / "out"
    pipe.save_pretrained(tmp_path / "pipe")
    done = run("adopt", tmp_path / "pipe", "-o", out)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "left out" not in done.output
    away = [float(x) for x in re.findall(r"is (\S+) away", done.output)]
    assert len(away) >= len(parts) and max(away) <= 1e-12
    names, folders = named([str(out)])
    stages = [f"stage/{stage}/out" for stage in ("sigmas", "latents", "prediction", "guidance")]
    assert names == [*(f"graph/out/{part}" for part in parts), *stages]
    assert [folder.name for folder in folders] == parts
    params = CASES["stage/sigmas/out"].params
    assert (params["levels"], params["schedule"], params["steps"]) == (*levels[:2], 4)
    assert params.get("shift") == (levels[2] and pytest.approx(levels[2], rel=1e-5))
    rule = f"levels {levels[0]}, schedule {levels[1]}, steps 4"
    for text in (done.output, run("golden", "show", out).output):
        assert f"stage/sigmas/out: engine diffusers, {rule}" in text, text
    noted = json.loads((out / "refsd-pipeline.json").read_text())["made"]
    assert (noted["made of"], noted["diffusers"]) == (type(pipe).__name__, diffusers.__version__)
    assert params.get("last", "zero") == ("lowest" if build is sd15_as_released else "zero")
    if build is not aura_flow:
        done = run("conform", "refsd", "--cases", out, "--report", tmp_path / "report")
        assert done.exit_code == 0 and "7 answers" in done.output, (done.output, done.exception)


# What stands between the networks: factor and shift, prediction and what the network is told of time, guidance.
FOUND = {
    sd15: ((0.18215, 0.0), ("eps", "sd", None), ("cfg", 7.5)),
    sd15_as_released: ((0.18215, 0.0), ("eps", "sd", None), ("cfg", 7.5)),
    aura_flow: ((0.18215, 0.0), ("flow", "flow", "sigma"), ("cfg", 3.5)),
    flux: ((0.3611, 0.1159), ("flow", "flow", "sigma"), None),
    zimage: ((0.3611, 0.1159), ("to-data", "flow", "1 - sigma"), ("zimage", 5.0)),
    qwen_image: ((1.0, 0.0), ("flow", "flow", "sigma"), ("qwen-image", 4.0)),
}


def stages_of(pipe, folder):
    """Cases by their stages, and what has none."""
    pipe.save_pretrained(folder)
    found, refused = cases_of("x", recorded(*opened(folder)))
    return {case.op: case for case in found}, refused


@pytest.mark.parametrize("build", FOUND, ids=lambda build: build.__name__)
def test_what_stands_between_its_networks_is_found(tmp_path, build):
    torch.manual_seed(0)
    found, refused = stages_of(build(), tmp_path)
    assert not refused
    scale, network, guidance = FOUND[build]
    params = found["stage/latents"].params
    assert (params["factor"], params.get("shift", 0.0)) == scale
    means = diffusers.AutoencoderKLQwenImage().config.latents_mean if build is qwen_image else None
    assert params.get("means") == means
    params = found["stage/prediction"].params
    assert (params["prediction"], params["levels"], params.get("time")) == network
    assert ("stage/guidance" in found) == (guidance is not None)
    if guidance is not None:
        assert (found["stage/guidance"].params["form"], found["stage/guidance"].params["scale"]) == guidance


class Skipping:
    """A pipeline that calls a norm of its text encoder itself, as with clip skip."""

    def __init__(self):
        encoder = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5))
        self.components = {"text_encoder": encoder, "tokenizer": None}

    def set_progress_bar_config(self, **_):
        pass

    def __call__(self):
        encoder = self.components["text_encoder"]
        encoder(torch.randn(2, 3))
        encoder[1](torch.randn(2, 5))


def test_a_module_inside_that_the_pipeline_calls_is_a_network():
    pipe = Skipping()
    run = recorded(pipe, {})
    encoder = pipe.components["text_encoder"]
    assert [(name, call.module) for name, call in run.calls.items()] == [
        ("text_encoder", encoder),
        ("text_encoder.1", encoder[1]),
    ]
    assert not any("forward" in vars(module) for module in encoder.modules())
    _, refused = cases_of("x", run)
    assert [*refused] == ["noise levels"]


class Wrong(Reference):
    """An engine with other parameters of its own."""

    name = "wrong"

    def __init__(self, **params):
        super().__init__()
        self._params = params

    def numerics(self, case):
        return TORCH_F32

    def run(self, case, inputs):
        return super().run(msgspec.structs.replace(case, params=case.params | self._params), inputs)


@pytest.mark.parametrize(
    ("build", "stage", "params", "place", "named"),
    [
        (flux, "latents", {"shift": 0.0}, "latent", "shift left out"),
        (flux, "latents", {"factor": 0.18215, "shift": 0.0}, "latent", "scale and shift of sd1"),
        (aura_flow, "latents", {"factor": 1.0}, "latent", "scale left out"),
        (qwen_image, "latents", {"means": [0.0] * 16}, "latent", "means of channels left out"),
        (qwen_image, "latents", {"spreads": [1.0] * 16}, "latent", "spreads of channels left out"),
        (aura_flow, "prediction", {"time": "1000 sigma"}, "t", "t of 0 to 1000"),
        (zimage, "prediction", {"time": "sigma"}, "t", "sigma for the timestep"),
        (zimage, "prediction", {"prediction": "flow"}, "denoised", "read as flow"),
        (zimage, "guidance", {"form": "cfg"}, "guided", "scale as usual, not Z-Image's"),
        (qwen_image, "guidance", {"form": "cfg"}, "guided", "tokens not rescaled"),
        (sd15, "guidance", {"scale": 8.5}, "guided", "scale one too high"),
    ],
)
def test_a_wrong_constant_is_found_placed_and_named(tmp_path, build, stage, params, place, named):
    torch.manual_seed(0)
    found, _ = stages_of(build(), tmp_path)
    case = found[f"stage/{stage}"]
    truth = Reference().run(case, case.realize())
    (right,) = conform.run(runner(lambda case: truth), [Wrong()], [case])
    assert right.status == "pass"
    (wrong,) = conform.run(runner(lambda case: truth), [Wrong(**params)], [case])
    assert (wrong.status, wrong.place, wrong.causes[:1]) == ("fail", place, (named,))


def test_a_folder_of_before_is_replaced(tmp_path, capfd, forgotten):  # noqa: F811
    """Nothing of what was adopted before stays: a pipeline in the place of a module, and the module again."""
    pipe, out, made = aura_flow(), tmp_path / "out", tmp_path / "model.py"
    pipe.save_pretrained(tmp_path / "pipe")
    made.write_text("import torch\n\n\ndef build():\n    return torch.nn.Linear(3, 5), [torch.randn(2, 3)]\n")
    of_the_module = ["blobs", "case.json", "cases", "graph.onnx", "inputs.safetensors", "weights.safetensors"]
    assert run("adopt", f"{made}:build", "-o", out).exit_code == 0
    (out / "stale").mkdir()
    capfd.readouterr()
    done = run("adopt", tmp_path / "pipe", "-o", out)
    assert done.exit_code == 0, done.exception
    assert not {path.name for path in out.iterdir()} & {"stale", "graph.onnx", "case.json"}
    # Progress alone: warnings of torch and diffusers are not for whoever adopts.
    first, *others = done.stderr.splitlines()
    assert first == "AuraFlowPipeline: one run of it, then a graph of each network"
    assert all(line.startswith("networks: ") for line in others), others
    assert capfd.readouterr() == ("", "")
    assert run("adopt", f"{made}:build", "-o", out).exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == of_the_module


def test_nothing_is_left_where_no_network_can_be_adopted(tmp_path):
    (tmp_path / "model.py").write_text(
        "import torch\n\n\nclass Branches(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x if x.sum() > 0 else -x\n\n\nclass Pipe:\n"
        "    components = {'transformer': Branches()}\n\n"
        "    def set_progress_bar_config(self, **_):\n        pass\n\n"
        "    def __call__(self):\n        self.components['transformer'](torch.ones(2, 3))\n\n\n"
        "def build():\n    return Pipe(), {}\n"
    )
    done = run("adopt", f"{tmp_path / 'model.py'}:build", "-o", tmp_path / "out")
    assert "torch cannot export Branches" in str(done.exception) and not (tmp_path / "out").exists()


ABOVE_ZERO = {"set_alpha_to_one": False}, {"final_sigmas_type": "sigma_min"}


@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("DDIMScheduler", {}),
        ("DDPMScheduler", {}),
        ("PNDMScheduler", {"skip_prk_steps": True, "set_alpha_to_one": True}),
        ("PNDMScheduler", {"skip_prk_steps": True}),
        ("DDIMScheduler", ABOVE_ZERO[0]),
        ("HeunDiscreteScheduler", {}),
        ("KDPM2DiscreteScheduler", {}),
        ("KDPM2AncestralDiscreteScheduler", {}),
        ("EulerDiscreteScheduler", ABOVE_ZERO[1]),
        ("EulerDiscreteScheduler", {}),
    ],
)
def test_the_rule_of_a_scheduler_is_found(name, more, spacing):
    """DDIM, DDPM and PNDM have no sigmas; PNDM runs its second level twice; Heun and KDPM2 have two a step."""
    scheduler = getattr(diffusers, name)(**LEVELS, timestep_spacing=spacing, steps_offset=1, **more)
    scheduler.set_timesteps(10)
    params = case_of("x", *noise_levels(scheduler)).params
    offset = {"options": {"offset": 1}} if spacing == "leading" else {}
    above_zero = {"last": "lowest"} if more in ABOVE_ZERO or more == {"skip_prk_steps": True} else {}
    expected = {"engine": "diffusers", "levels": "sd", "schedule": spacing, "steps": 10, **offset, **above_zero}
    assert params == expected


@pytest.mark.parametrize(
    ("name", "config", "steps", "says"),
    [
        (
            "EulerDiscreteScheduler",
            LEVELS | {"timestep_spacing": "trailing", "use_beta_sigmas": True},
            5,
            r"trailing is nearest, with sigmas\[1\] ",
        ),
        ("DDIMScheduler", {"beta_start": 1e-4}, 5, "no rule of refsd gives them"),
        ("EulerDiscreteScheduler", LEVELS, 3, "3 steps: too few steps to tell; 4 or more"),
    ],
)
def test_levels_without_a_rule_have_a_reason(name, config, steps, says):
    scheduler = getattr(diffusers, name)(**config)
    scheduler.set_timesteps(steps)
    with pytest.raises(BadInput, match=says):
        case_of("x", *noise_levels(scheduler))


def test_a_pipeline_without_a_scheduler_has_no_levels():
    with pytest.raises(BadInput, match="it has no list of noise levels"):
        case_of("x", *noise_levels(None))


def test_what_is_no_pipeline_is_refused(tmp_path):
    folder, model, out = tmp_path / "pipe", tmp_path / "model.py", tmp_path / "out"
    folder.mkdir()
    assert "it has no model_index.json" in str(run("adopt", folder, "-o", out).exception)
    for index, says in (("{}", "it has no _class_name"), ("[]", "a JSON list"), ("no", "not JSON")):
        (folder / "model_index.json").write_text(index)
        assert says in str(run("adopt", folder, "-o", out).exception)
    (folder / "model_index.json").write_text('{"_class_name": "NoPipeline"}')
    model.write_text(
        "import diffusers\n\n\ndef build():\n"
        "    return diffusers.DDPMPipeline(None, diffusers.DDPMScheduler()), {}\n"
    )
    for source, says in ((folder, "diffusers cannot load"), (f"{model}:build", "torch cannot run DDPMPipeline")):
        done = run("adopt", source, "-o", out)
        assert says in str(done.exception) and not out.exists(), done.output
    assert "without --inputs" in str(run("adopt", folder, "-o", out, "--config", model).exception)
