"""The ComfyUI node and the Forge extension under examples/, on a torch module of their structure."""

import importlib.util
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from refsd.engines.dump.engine import read_dump

pytestmark = pytest.mark.peer
EXAMPLES = Path(__file__).parents[2] / "examples"


class Network(torch.nn.Module):
    """A UNet's skeleton: layers under the names of the original file, one of them used twice."""

    def __init__(self):
        super().__init__()
        self.time_embed = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.SiLU(), torch.nn.Linear(8, 8))
        self.input_blocks = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, padding=1))])
        self.norm = torch.nn.GroupNorm(2, 8)

    def forward(self, x, timesteps, context=None, transformer_options=None):
        emb = self.time_embed(timesteps[:, None].expand(-1, 4)) + context.mean(1)
        h = self.norm(self.input_blocks[0](x) + emb[:, :, None, None])
        return self.norm(h)


class Patcher:
    """What ComfyUI's and Forge's ModelPatcher do here."""

    def __init__(self, network):
        self.model, self.wrapper = SimpleNamespace(diffusion_model=network), None

    def clone(self):
        return Patcher(self.model.diffusion_model)

    def set_model_unet_function_wrapper(self, wrapper):
        self.wrapper = wrapper

    def call(self, x, t, context):
        def apply(x, t, **c):
            return self.model.diffusion_model(x / 2, t, context=c["c_crossattn"], transformer_options={})

        return self.wrapper(apply, {"input": x, "timestep": t, "c": {"c_crossattn": context}})


def load(path, monkeypatch, **modules):
    for name, contents in modules.items():
        module = ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location(path.stem, EXAMPLES / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def comfyui(monkeypatch, network, folder):
    page = Path("comfyui/refsd_taps.py")
    module = load(page, monkeypatch, folder_paths={"get_output_directory": lambda: str(folder)})
    node = module.NODE_CLASS_MAPPINGS["RefsdTaps"]()
    assert set(node.INPUT_TYPES()["required"]) == {"model", "call", "name"}
    (patched,) = getattr(node, node.FUNCTION)(Patcher(network), 1, "../refsd-taps")
    return patched


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_wrong_operation_of_one_call_is_shown_in_comfyuis_log(monkeypatch, tmp_path, caplog):
    """Each prompt makes the node anew, and its first call is watched, no other."""
    caplog.set_level("INFO")
    page = Path("comfyui/refsd_watch.py")
    module = load(page, monkeypatch, folder_paths={"get_output_directory": lambda: tmp_path})
    node, network = module.NODE_CLASS_MAPPINGS["RefsdWatch"](), Network()
    assert set(node.INPUT_TYPES()["required"]) == {"model", "seconds"}
    assert node.IS_CHANGED(model=None) != node.IS_CHANGED(model=None)
    call = torch.randn(2, 4, 6, 5), torch.tensor([9.0, 9.0]), torch.randn(2, 7, 8)
    with torch.inference_mode():
        for wrong in (False, True):
            caplog.clear()
            (patched,) = getattr(node, node.FUNCTION)(Patcher(network), 60)
            with silu_of_cpu(torch.relu) if wrong else nullcontext():
                assert torch.equal(patched.call(*call), patched.call(*call))
            (line,) = caplog.messages
            assert ("1 wrong call; " in line) == wrong, line
            assert ("aten.silu.default in time_embed.1" in line) == wrong, line
            assert (tmp_path / "refsd-watch/reproduce.py").exists() == wrong


@contextmanager
def silu_of_cpu(kernel):
    library = torch.library.Library("aten", "IMPL")
    library.impl("silu", kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()


def forge(monkeypatch, network, folder):
    page = Path("forge/refsd-taps/scripts/refsd_taps.py")
    scripts = SimpleNamespace(Script=object, AlwaysVisible=object())
    module = load(page, monkeypatch, gradio={}, modules={"scripts": scripts})
    objects = SimpleNamespace(unet=Patcher(network))
    p = SimpleNamespace(sd_model=SimpleNamespace(forge_objects=objects), outpath_samples=str(folder))
    before = objects.unet
    module.RefsdTaps().process_before_every_sampling(p, False, 1)
    assert objects.unet is before
    module.RefsdTaps().process_before_every_sampling(p, True, 1, x=None)
    return objects.unet


@pytest.mark.parametrize("patch", [comfyui, forge])
def test_the_layers_of_one_call_are_written_by_their_names(patch, monkeypatch, tmp_path):
    torch.manual_seed(0)
    network = Network()
    patched = patch(monkeypatch, network, tmp_path)
    calls = [(torch.randn(2, 4, 6, 5), torch.tensor([t, t]), torch.randn(2, 7, 8)) for t in (9.0, 5.0, 1.0)]
    with torch.inference_mode():
        answers = [patched.call(*call) for call in calls]
        x, t, context = calls[1]
        expected = network(x / 2, t, context)
        first = network.input_blocks[0](x / 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "refsd-taps-inputs.safetensors",
        "refsd-taps.safetensors",
    ]
    taps, inputs = (read_dump(tmp_path / f"refsd-taps{end}.safetensors") for end in ("", "-inputs"))
    assert taps.keys() == {"time_embed.0", "time_embed.2", "input_blocks.0.0", "norm", "out"}
    np.testing.assert_array_equal(taps["input_blocks.0.0"], first)
    np.testing.assert_array_equal(taps["out"], expected)
    np.testing.assert_array_equal(answers[1], expected)
    assert inputs.keys() == {"x", "timesteps", "context"}
    np.testing.assert_array_equal(inputs["x"], x / 2)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in network.modules())
