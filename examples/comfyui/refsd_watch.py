"""ComfyUI node: judge every operation of torch in one call of the diffusion model (docs/watch.md).

Put this file into custom_nodes, install refsd in ComfyUI's Python (pip install PATH, your clone), and put the node
"refsd watch" between the model and the sampler. The report goes to ComfyUI's log; a program that shows the first
wrong call, to refsd-watch in its output folder.
"""

import logging
import os

import folder_paths

import refsd


class RefsdWatch:
    @classmethod
    def INPUT_TYPES(cls):
        seconds = ("INT", {"default": 120, "min": 1, "tooltip": "judge no more after these seconds of judging"})
        return {"required": {"model": ("MODEL",), "seconds": seconds}}

    @classmethod
    def IS_CHANGED(cls, **_):
        return float("nan")  # ComfyUI keeps what a node gave; so it runs again, and each prompt is watched

    RETURN_TYPES, FUNCTION, CATEGORY = ("MODEL",), "watch", "refsd"

    def watch(self, model, seconds):
        model, calls = model.clone(), iter([True])
        folder = os.path.join(folder_paths.get_output_directory(), "refsd-watch")

        def wrapper(apply_model, args):
            def run():
                return apply_model(args["input"], args["timestep"], **args["c"])

            if not next(calls, False):
                return run()
            limits = {"unique": True, "rows": 64, "seconds": seconds}
            network = model.model.diffusion_model
            # print is held back where ComfyUI's output goes to a file; its log is not.
            with refsd.watch(network, by="operations", **limits, folder=folder, show=logging.info):
                return run()

        model.set_model_unet_function_wrapper(wrapper)
        return (model,)


NODE_CLASS_MAPPINGS = {"RefsdWatch": RefsdWatch}
NODE_DISPLAY_NAME_MAPPINGS = {"RefsdWatch": "refsd watch"}
