"""Pipelines of diffusers are adopted: a case for each network that their run calls, and one for their levels."""

import json
import re

import diffusers
import pytest
import torch
from record_tokenizers import t5
from test_conditioning import clip_pair
from tiny_tokenizers import unigram_trained
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel
from typer.testing import CliRunner

from refsd.adoption.folder import named
from refsd.adoption.noise_levels import case_of
from refsd.adoption.pipelines import noise_levels
from refsd.cases import CASES
from refsd.cli import app
from refsd.numerics.errors import BadInput
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


def aura_flow():
    """A pipeline without a page; its text encoder is UMT5, which refsd has, its transformer is not."""
    vocab = unigram_trained()
    config = T5Config(vocab_size=len(vocab), d_model=40, d_kv=8, d_ff=33, num_layers=2, num_heads=2)
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
        tokenizer=t5(vocab),
        text_encoder=T5EncoderModel(config),
        vae=tiny_vae(),
        transformer=transformer,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=1.73),
    )


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.mark.parametrize(
    ("build", "parts", "levels"),
    [
        (sd15, ["text_encoder", "unet", "vae.decode"], ("sd", "leading")),
        (sd15_as_released, ["text_encoder", "unet", "vae.decode"], ("sd", "leading")),
        (aura_flow, ["text_encoder", "transformer", "vae.decode"], ("flow", "flow_linspace")),
    ],
)
def test_its_networks_and_levels_are_cases(tmp_path, build, parts, levels, forgotten):  # noqa: F811
    torch.manual_seed(0)
    pipe, out = build(), tmp_path / "out"
    pipe.save_pretrained(tmp_path / "pipe")
    done = run("adopt", tmp_path / "pipe", "-o", out)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "left out" not in done.output
    away = [float(x) for x in re.findall(r"is (\S+) away", done.output)]
    assert len(away) >= len(parts) and max(away) <= 1e-12
    names, folders = named([str(out)])
    assert names == [*(f"graph/out/{part}" for part in parts), "stage/sigmas/out"]
    assert [folder.name for folder in folders] == parts
    params = CASES["stage/sigmas/out"].params
    assert (params["levels"], params["schedule"], params["steps"]) == (*levels, 4)
    assert params.get("shift", 1.73) == pytest.approx(1.73, rel=1e-5)
    rule = f"levels {levels[0]}, schedule {levels[1]}, steps 4"
    for text in (done.output, run("golden", "show", out).output):
        assert f"stage/sigmas/out: engine diffusers, {rule}" in text, text
    noted = json.loads((out / "refsd-pipeline.json").read_text())["made"]
    assert (noted["made of"], noted["diffusers"]) == (type(pipe).__name__, diffusers.__version__)
    assert params.get("last", "zero") == ("lowest" if build is sd15_as_released else "zero")
    if build is not aura_flow:
        done = run("conform", "refsd", "--cases", out, "--report", tmp_path / "report")
        assert done.exit_code == 0 and "4 answers" in done.output, (done.output, done.exception)


def test_a_folder_of_before_is_replaced(tmp_path, capfd, forgotten):  # noqa: F811
    """Nothing of the earlier pipeline stays, and nothing is left where no network of it can be adopted."""
    pipe, out = sd15(), tmp_path / "out"
    pipe.save_pretrained(tmp_path / "pipe")
    capfd.readouterr()
    for _ in range(2):
        done = run("adopt", tmp_path / "pipe", "-o", out)
        assert done.exit_code == 0, done.exception
        (out / "stale").mkdir()
    # Progress alone: warnings of torch and diffusers are not for whoever adopts.
    first, *others = done.stderr.splitlines()
    assert first == "StableDiffusionPipeline: one run of it, then a graph of each network"
    assert all(line.startswith("networks: ") for line in others), others
    assert capfd.readouterr() == ("", "")
    made = tmp_path / "model.py"
    made.write_text("import torch\n\n\ndef build():\n    return torch.nn.Linear(3, 5), [torch.randn(2, 3)]\n")
    assert run("adopt", f"{made}:build", "-o", out).exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == [
        *("blobs", "case.json", "cases", "graph.onnx", "inputs.safetensors", "weights.safetensors")
    ]


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
