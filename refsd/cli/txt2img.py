"""refsd txt2img: make a picture from a prompt, with sd-cli's flag names."""

from typing import Any

from refsd.cli.parts import FLAGS, PARTS, part_files
from refsd.cli.picture_options import image_files, settings_of, takes
from refsd.pipelines.options import OPTIONS, fields


@takes([o for o in OPTIONS if not o.panel], PARTS, [o for o in OPTIONS if o.panel])
def txt2img(**given: Any) -> None:
    """Make a picture from a prompt with a model's weights.

    The model is one file, a diffusers folder, or its parts: --diffusion-model, --vae or --taesd, and the family's
    text encoders. What is missing is named.
    """
    import secrets

    from refsd.circular import CircularAxes
    from refsd.pipelines.guidance_rule import GuidanceRule, read_extra, read_layers
    from refsd.pipelines.hires import HiresSettings
    from refsd.pipelines.pictures import Files, draw
    from refsd.pipelines.preview import PreviewSettings
    from refsd.pipelines.settings import read_cache_mode, read_sigmas, read_tiling
    from refsd.weights.model_files import model_path

    tiling = read_tiling(given["vae_tile_size"], given["vae_relative_tile_size"], given["vae_tile_overlap"])
    levels, seed = read_sigmas(given["sigmas"]), given["seed"]
    rule = GuidanceRule(**fields("GuidanceRule", given), skip_layers=read_layers(given["skip_layers"]))
    wraps = given["circular"]
    settings = settings_of(
        given,
        steps=given["steps"] if levels is None else len(levels) - 1,
        sigmas=levels,
        tiling=tiling if given["vae_tiling"] else None,
        circular=CircularAxes(wraps or given["circularx"], wraps or given["circulary"]),
        cache=read_cache_mode(given["cache_mode"], given["cache_option"]),
        guidance_rule=rule._replace(**read_extra(given["extra_sample_args"])),
        seed=seed if seed >= 0 else secrets.randbelow(2**31),
    )
    references = given["ref_image"] or ()
    files = Files(
        model=given["model"] and model_path(given["model"]),
        output=given["output"],
        vocab=given["vocab"],
        numerics=given["numerics"],
        deviations=tuple(given["deviation"] or ()),
        taps=given["taps"],
        verbose=given["verbose"],
        loras=tuple(given["lora"] or ()),
        parts=part_files(*(given[name] for name in [*PARTS][: len(FLAGS)])),
        images=image_files(given),
        more_references=tuple(references[1:]),
        ip_images=tuple(given["ip_image"] or ()),
        zero_cond_t=given["qwen_image_zero_cond_t"],
        klein_kv=given["flux2_klein_kv"],
        tokenizer=given["tokenizer"],
        json=given["json"],
        lora_rule=given["lora_rule"],
        embeddings=given["embd_dir"],
        preview=PreviewSettings(**fields("PreviewSettings", given)),
    )
    second = HiresSettings(**fields("HiresSettings", given), sigmas=read_sigmas(given["hires_sigmas"]))
    draw(files, settings, second if given["hires"] else None)
