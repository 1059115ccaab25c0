"""Forge extension: write what every layer of the diffusion model gives in one call, for `refsd compare`.

Copy the folder refsd-taps into Forge's extensions. With the box "refsd taps" ticked, a picture also writes, beside
the pictures, refsd-taps.safetensors: the taps by the names of the modules; and refsd-taps-inputs.safetensors: what
the model was called with. How to judge them: docs/servers.md.
"""

import os

import gradio as gr
from modules import scripts
from safetensors.numpy import save_file


class RefsdTaps(scripts.Script):
    def title(self):
        return "refsd taps"

    def show(self, is_img2img):
        return scripts.AlwaysVisible

    def ui(self, is_img2img):
        with gr.Accordion("refsd taps", open=False):
            return [gr.Checkbox(False, label="refsd taps"), gr.Number(0, label="call of the model", precision=0)]

    def process_before_every_sampling(self, p, enabled, call, **kwargs):
        if not enabled:
            return
        unet, calls = p.sd_model.forge_objects.unet.clone(), iter(range(int(call) + 1))
        path = os.path.join(p.outpath_samples, "refsd-taps")

        def wrapper(apply_model, args):
            watching = Watching(unet.model.diffusion_model) if next(calls, -1) == call else None
            y = apply_model(args["input"], args["timestep"], **args["c"])
            if watching:
                watching.write(path)
            return y

        unet.set_model_unet_function_wrapper(wrapper)
        p.sd_model.forge_objects.unet = unet


class Watching:
    """Listens to every layer of a network that has a weight, until it writes."""

    def __init__(self, network):
        self.taps, self.inputs = {}, {}
        named = [*((name, m) for name, m in network.named_modules() if hasattr(m, "weight")), ("out", network)]
        self.handles = [layer.register_forward_hook(self.hear(name)) for name, layer in named]
        self.handles.append(network.register_forward_pre_hook(self.hear_inputs, with_kwargs=True))

    def hear(self, name):
        def heard(module, args, y):
            if name not in self.taps:
                self.taps[name] = y.detach().float().cpu().contiguous().numpy()

        return heard

    def hear_inputs(self, module, args, kwargs):
        given = dict(zip(("x", "timesteps", "context"), args, strict=False)) | kwargs
        tensors = {key: value for key, value in given.items() if hasattr(value, "detach")}
        self.inputs.update(
            {key: value.detach().float().cpu().contiguous().numpy() for key, value in tensors.items()}
        )

    def write(self, path):
        for handle in self.handles:
            handle.remove()
        save_file(self.inputs, f"{path}-inputs.safetensors")
        save_file(self.taps, f"{path}.safetensors")
