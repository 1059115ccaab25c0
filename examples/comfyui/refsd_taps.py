"""ComfyUI node: write what every layer of the diffusion model gives in one call, for `refsd compare`.

Put this file into custom_nodes, and the node "refsd taps" between the model and the sampler. It writes to
ComfyUI's output folder: NAME.safetensors, the taps by the names of the modules; NAME-inputs.safetensors, what the
call was given. How to judge them: docs/servers.md.
"""

import os

import folder_paths
from safetensors.numpy import save_file


class RefsdTaps:
    @classmethod
    def INPUT_TYPES(cls):
        call = ("INT", {"default": 0, "min": 0, "tooltip": "which call of the model, from 0"})
        return {"required": {"model": ("MODEL",), "call": call, "name": ("STRING", {"default": "refsd-taps"})}}

    @classmethod
    def IS_CHANGED(cls, **_):
        return float("nan")  # ComfyUI keeps what a node gave; so it runs again, and each prompt is recorded

    RETURN_TYPES, FUNCTION, CATEGORY = ("MODEL",), "record", "refsd"

    def record(self, model, call, name):
        model, calls = model.clone(), iter(range(call + 1))
        path = os.path.join(folder_paths.get_output_directory(), os.path.basename(name))

        def wrapper(apply_model, args):
            def run():
                return apply_model(args["input"], args["timestep"], **args["c"])

            return recorded(model.model.diffusion_model, run, path) if next(calls, -1) == call else run()

        model.set_model_unet_function_wrapper(wrapper)
        return (model,)


def recorded(network, run, path):
    """Call run() while every layer with a weight is listened to, and write the files."""
    taps, inputs = {}, {}

    def listener(name):
        # The hook gives None: anything else would take the place of the layer's output.
        return lambda module, args, y: taps.update({name: as_array(y)} if name not in taps else {})

    def listen_inputs(module, args, kwargs):
        given = {**dict(zip(("x", "timesteps", "context"), args, strict=False)), **kwargs}
        inputs.update({key: as_array(value) for key, value in given.items() if hasattr(value, "detach")})

    layers = [(name, layer) for name, layer in network.named_modules() if hasattr(layer, "weight")]
    handles = [layer.register_forward_hook(listener(name)) for name, layer in layers]
    handles.append(network.register_forward_pre_hook(listen_inputs, with_kwargs=True))
    handles.append(network.register_forward_hook(listener("out")))
    try:
        y = run()
    finally:
        for handle in handles:
            handle.remove()
    save_file(inputs, f"{path}-inputs.safetensors")
    save_file(taps, f"{path}.safetensors")
    return y


def as_array(tensor):
    return tensor.detach().float().cpu().contiguous().numpy()


NODE_CLASS_MAPPINGS = {"RefsdTaps": RefsdTaps}
NODE_DISPLAY_NAME_MAPPINGS = {"RefsdTaps": "refsd taps"}
