"""PEFT on diffusers' denoisers, in float64: the file that a user would save, read back, and the model's answer."""

import peft
import peft.tuners.boft.layer as boft_layer
import pytest
import torch
from float64_peers import distance, float64_throughout, redraw
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from test_loading_folders import FAMILIES, FOLDER

from refsd.adapters import Merged
from refsd.components import forward, load
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.weights import open_checkpoint
from refsd.weights.loras import open_loras

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning")]
SPLIT = ["to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "proj_mlp"]
# Adapter -> its settings, and the rank and alpha that a file of PEFT's does not hold.
CONFIGS = {
    "lora": peft.LoraConfig(r=3, lora_alpha=3, target_modules="all-linear", init_lora_weights=False),
    "dora": peft.LoraConfig(r=2, lora_alpha=2, target_modules=SPLIT, use_dora=True, init_lora_weights=False),
    "lokr": peft.LoKrConfig(r=2, alpha=2, target_modules=SPLIT, init_weights=False),
}


def redraw_adapter(peer):
    """Every parameter of the adapter gets its own draw."""
    generator = torch.Generator().manual_seed(11)
    for name, parameter in peer.named_parameters():
        if any(part in name for part in ("lora_", "lokr_", "oft_", "boft_", "ia3_")):
            offset = 1.2 if any(part in name for part in ("magnitude", "boft_s", "ia3_l")) else 0.0
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator) + offset


def with_adapter(peer, kind):
    """-> what PEFT saves of it"""
    peer.add_adapter(CONFIGS[kind])
    redraw_adapter(peer)
    return get_peft_model_state_dict(peer, adapter_name="default")


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(
    "family", ("sd2", "sd3.5", "flux", "chroma", "zimage", "qwen-image", "qwen-image21", "flux2", "flux3")
)
def test_it_answers_as_peft_does(tmp_path, family, kind):
    with float64_throughout():
        peer, run, component, inputs = FAMILIES[family]()
        redraw(peer, 4)
        plain = run()
        folder = FOLDER.get(component, "transformer")
        peer.save_pretrained(tmp_path / folder)
        state = with_adapter(peer, kind)
        want = run()
    lora = tmp_path / "adapter.safetensors"
    save_file({f"{folder}.{name}": tensor.contiguous() for name, tensor in state.items()}, lora)
    checkpoint = open_checkpoint(tmp_path)
    loras = open_loras([str(lora)], checkpoint)
    m, params = load(checkpoint, component, Arithmetic(FLOAT64), loras=loras)
    got = forward(component, m, inputs, params)["out"]
    assert distance(got, plain) > 1e-3
    assert distance(got, want) <= 1e-12
    merged = Module(Merged(m.weights, m.adapters), Arithmetic(FLOAT64))
    assert distance(forward(component, merged, inputs, params)["out"], want) <= 1e-12


# As PEFT saves them: adapter_model.safetensors and, beside it, adapter_config.json.
SAVED = {
    "lora": peft.LoraConfig(
        r=3,
        lora_alpha=4,
        target_modules=SPLIT,
        use_rslora=True,
        lora_bias=True,
        rank_pattern={"to_k": 2},
        alpha_pattern={r"transformer_blocks\.0\..*to_q": 5, "^single_transformer_blocks.0.attn.to_v": 7, "to_v": 9},
        exclude_modules=["proj_mlp"],
        layers_to_transform=[0],
        layers_pattern=["transformer_blocks", "single_transformer_blocks"],
        init_lora_weights=False,
    ),
    "lokr": peft.LoKrConfig(
        r=2, alpha=3, target_modules=SPLIT, rank_pattern={"to_q": 99}, alpha_pattern={"to_k": 5}, init_weights=False
    ),
    "oft": peft.OFTConfig(target_modules=SPLIT, init_weights=False),
    "boft": peft.BOFTConfig(target_modules=SPLIT, init_weights=False),
    "ia3": peft.IA3Config(target_modules=SPLIT, feedforward_modules=["to_k", "proj_mlp"], init_ia3_weights=False),
}


@pytest.mark.parametrize("kind", SAVED)
@pytest.mark.filterwarnings("ignore:Adapter 'default'. .* LoRA tensor.s. have invalid shape")
def test_a_folder_that_peft_saves(tmp_path, kind, monkeypatch):
    """With PEFT's own defaults (an OFT of r 0 and blocks of 32), and patterns of modules."""
    monkeypatch.setattr(boft_layer, "get_fbd_cuda", lambda: False)
    with float64_throughout():
        peer, run, component, inputs = FAMILIES["flux"]()
        redraw(peer, 4)
        plain = run()
        peer.save_pretrained(tmp_path / "transformer")
        model = peft.get_peft_model(peer, SAVED[kind])
        redraw_adapter(model)
        want = run()
        model.save_pretrained(tmp_path / "adapter")
    loras = [str(tmp_path / "adapter" / "adapter_model.safetensors")]
    checkpoint = open_checkpoint(tmp_path / "transformer")
    m, params = load(checkpoint, component, Arithmetic(FLOAT64), loras=open_loras(loras, checkpoint))
    got = forward(component, m, inputs, params)["out"]
    assert distance(got, plain) > 1e-3
    assert distance(got, want) <= 1e-12
    if kind in ("oft", "boft", "ia3"):
        weaker = open_loras([f"{loras[0]}:0.7"], checkpoint)
        with pytest.raises(BadInput, match=f"{kind} of PEFT at strength 0.7: PEFT knows 1 alone"):
            load(checkpoint, component, Arithmetic(FLOAT64), loras=weaker)
