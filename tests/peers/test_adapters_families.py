"""PEFT on diffusers' denoisers, in float64: the file that a user would save, read back, and the model's answer."""

import peft
import pytest
import torch
from float64_peers import distance, float64_throughout, redraw
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from test_loading_folders import FAMILIES, FOLDER

from refsd.adapters import Merged, open_loras
from refsd.components import forward, load
from refsd.golden.arithmetic import Arithmetic
from refsd.golden.numerics import FLOAT64
from refsd.module import Module
from refsd.weights import open_checkpoint

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning")]
SPLIT = ["to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "proj_mlp"]
# Adapter -> its settings, and the rank and alpha that a file of PEFT's does not hold.
CONFIGS = {
    "lora": peft.LoraConfig(r=3, lora_alpha=3, target_modules="all-linear", init_lora_weights=False),
    "dora": peft.LoraConfig(r=2, lora_alpha=2, target_modules=SPLIT, use_dora=True, init_lora_weights=False),
    "lokr": peft.LoKrConfig(r=2, alpha=2, target_modules=SPLIT, init_weights=False),
}


def with_adapter(peer, kind):
    """Every parameter of the adapter gets its own draw. -> what PEFT saves of it"""
    peer.add_adapter(CONFIGS[kind])
    generator = torch.Generator().manual_seed(11)
    for name, parameter in peer.named_parameters():
        if "lora_" in name or "lokr_" in name:
            offset = 1.2 if "magnitude" in name else 0.0
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator) + offset
    return get_peft_model_state_dict(peer, adapter_name="default")


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("family", ("sd2", "sd3.5", "flux", "chroma", "zimage", "flux2"))
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
