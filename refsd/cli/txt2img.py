"""refsd txt2img: make a picture from a prompt, with sd-cli's flag names."""

from pathlib import Path
from typing import Annotated

import typer

from refsd.cli.drawing_options import (
    ExtraSampleArgs,
    GuidanceRescale,
    Hires,
    HiresHeight,
    HiresScale,
    HiresSigmas,
    HiresSteps,
    HiresStrength,
    HiresTileSize,
    HiresUpscaler,
    HiresWidth,
    Preview,
    PreviewInterval,
    PreviewNoisy,
    PreviewPath,
    SkipLayerEnd,
    SkipLayers,
    SkipLayerStart,
    SlgScale,
)
from refsd.cli.image_options import (
    CONTROL_STRENGTH,
    IMAGES,
    STRENGTH,
    ControlImage,
    ControlStrength,
    InitImg,
    IPImages,
    IPScale,
    Mask,
    ReduxImage,
    RefImages,
    Strength,
    image_files,
)
from refsd.cli.numerics import Profile
from refsd.cli.parts import (
    T5XXL,
    ClipG,
    ClipL,
    ClipVision,
    ControlNet,
    DiffusionModel,
    IPAdapter,
    Llm,
    LlmVision,
    LoraRule,
    Redux,
    Taesd,
    Tokenizer,
    Vae,
    Vocab,
    part_files,
)

TILES = "Large pictures"


def register(app: typer.Typer) -> None:
    app.command("txt2img")(txt2img)


def txt2img(
    prompt: Annotated[
        str, typer.Option("-p", "--prompt", help="What to draw. (x:1.2), [x] and BREAK work as in A1111.")
    ],
    model: Annotated[
        Path | None, typer.Option("-m", "--model", help="A .safetensors or .gguf file, or a diffusers folder.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="A .png file.")] = Path("output.png"),
    negative_prompt: Annotated[
        str, typer.Option("-n", "--negative-prompt", help="What not to draw. Used if --cfg-scale is not 1.")
    ] = "",
    width: Annotated[
        int,
        typer.Option(
            "-W", "--width", help="Pixels, rounded up to the model's multiple. 0: the width of --init-img, or 512."
        ),
    ] = 0,
    height: Annotated[int, typer.Option("-H", "--height", help="Like --width.")] = 0,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Default: the family's: 20 for UNets, 4 for FLUX.1 schnell, ...")
    ] = None,
    cfg_scale: Annotated[
        float | None,
        typer.Option(
            "--cfg-scale",
            help="Classifier-free guidance; 1 turns it off. Default: 7 for UNets, 1 for FLUX and Z-Image.",
        ),
    ] = None,
    guidance: Annotated[
        float | None,
        typer.Option(
            "--guidance",
            help="Distilled guidance, for models that embed it. Default: FLUX.1 3.5, Fill 30, FLUX.2 4.",
        ),
    ] = None,
    like: Annotated[
        str,
        typer.Option(
            "--like",
            help="sdcpp or diffusers: the engine to imitate in text length, schedule, noise and img2img.",
        ),
    ] = "sdcpp",
    sampling_method: Annotated[
        str | None,
        typer.Option(
            "--sampling-method",
            "--sampler",
            help="euler, heun, dpm++2m, ...; an unknown name lists all. Default: euler_a for UNets, else euler.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            "--schedule",
            help="discrete, karras, flow_uniform, ...; an unknown name lists all. Default: that of the family and "
            "of --like; lcm for the samplers lcm and tcd.",
        ),
    ] = None,
    sigmas: Annotated[
        str | None,
        typer.Option("--sigmas", help="Noise levels instead of a schedule: 14.61,7.8,3.5,0. --steps is ignored."),
    ] = None,
    flow_shift: Annotated[
        float | None,
        typer.Option(
            "--flow-shift", help="Shift of a rectified flow. Default: 3 for SD 3; FLUX: by the size (give its mu)."
        ),
    ] = None,
    prediction: Annotated[
        str | None,
        typer.Option(
            "--prediction",
            help="What a UNet predicts: eps, v or edm_v. Default: from its config; for SD 2 files by a trial run.",
        ),
    ] = None,
    eta: Annotated[
        float | None,
        typer.Option("--eta", help="Share of fresh noise, for samplers that add noise. Default: sd-cli's."),
    ] = None,
    seed: Annotated[int, typer.Option("-s", "--seed", help="Below 0: a random seed, which is printed.")] = 42,
    rng: Annotated[
        str | None,
        typer.Option("--rng", help="cuda (Philox, as sd-cli and A1111) or cpu (as torch, diffusers, ComfyUI)."),
    ] = None,
    sampler_rng: Annotated[
        str | None,
        typer.Option("--sampler-rng", help="Generator of the noise between steps. Default: that of --rng."),
    ] = None,
    clip_skip: Annotated[
        int, typer.Option("--clip-skip", help="2 skips CLIP's last layer. Below 1: the family's default.")
    ] = -1,
    batch_count: Annotated[
        int,
        typer.Option(
            "-b", "--batch-count", help="How many pictures, with consecutive seeds: cat_0.png, cat_1.png, ..."
        ),
    ] = 1,
    diffusion_model: DiffusionModel = None,
    vae: Vae = None,
    taesd: Taesd = None,
    clip_l: ClipL = None,
    clip_g: ClipG = None,
    t5xxl: T5XXL = None,
    llm: Llm = None,
    control_net: ControlNet = None,
    ip_adapter: IPAdapter = None,
    clip_vision: ClipVision = None,
    redux: Redux = None,
    llm_vision: LlmVision = None,
    vocab: Vocab = None,
    tokenizer: Tokenizer = None,
    init_img: InitImg = None,
    strength: Strength = STRENGTH,
    mask: Mask = None,
    control_image: ControlImage = None,
    control_strength: ControlStrength = CONTROL_STRENGTH,
    ref_image: RefImages = None,
    redux_image: ReduxImage = None,
    ip_image: IPImages = None,
    ip_scale: IPScale = 1.0,
    qwen_image_zero_cond_t: Annotated[
        bool,
        typer.Option(
            "--qwen-image-zero-cond-t",
            help="The weights are Qwen-Image-Edit 2511's, though no file says so: what is edited is at time 0.",
            rich_help_panel=IMAGES,
        ),
    ] = False,
    img_cfg_scale: Annotated[
        float | None,
        typer.Option(
            "--img-cfg-scale",
            help="Image guidance of pix2pix. Default: --cfg-scale; with --like diffusers 1.5.",
            rich_help_panel=IMAGES,
        ),
    ] = None,
    vae_tiling: Annotated[
        bool,
        typer.Option(
            "--vae-tiling",
            help="Decode in tiles: needs less memory; the picture differs slightly.",
            rich_help_panel=TILES,
        ),
    ] = False,
    vae_tile_size: Annotated[
        str | None,
        typer.Option(
            "--vae-tile-size",
            help="In latent pixels: 32, or 32x24 (width x height). Below 4: 32.",
            rich_help_panel=TILES,
        ),
    ] = None,
    vae_relative_tile_size: Annotated[
        str | None,
        typer.Option(
            "--vae-relative-tile-size",
            help="Share of the latent, 0.5 or 0.5x0.25; above 1: the number of tiles. Overrides --vae-tile-size.",
            rich_help_panel=TILES,
        ),
    ] = None,
    vae_tile_overlap: Annotated[
        float,
        typer.Option(
            "--vae-tile-overlap",
            help="Share of a tile that overlaps its neighbours, 0 to 0.5.",
            rich_help_panel=TILES,
        ),
    ] = 0.5,
    guidance_rescale: GuidanceRescale = 0.0,
    slg_scale: SlgScale = 0.0,
    skip_layers: SkipLayers = "7,8,9",
    skip_layer_start: SkipLayerStart = 0.01,
    skip_layer_end: SkipLayerEnd = 0.2,
    extra_sample_args: ExtraSampleArgs = "",
    hires: Hires = False,
    hires_upscaler: HiresUpscaler = "Latent",
    hires_scale: HiresScale = 2.0,
    hires_width: HiresWidth = 0,
    hires_height: HiresHeight = 0,
    hires_steps: HiresSteps = 0,
    hires_denoising_strength: HiresStrength = 0.7,
    hires_sigmas: HiresSigmas = None,
    hires_upscale_tile_size: HiresTileSize = 128,
    preview: Preview = "none",
    preview_path: PreviewPath = Path("preview.png"),
    preview_interval: PreviewInterval = 1,
    preview_noisy: PreviewNoisy = False,
    circular: Annotated[
        bool, typer.Option("--circular", help="Circular padding on both axes, so that the picture tiles (UNets).")
    ] = False,
    circularx: Annotated[bool, typer.Option("--circularx", help="Circular padding from left to right.")] = False,
    circulary: Annotated[bool, typer.Option("--circulary", help="Circular padding from top to bottom.")] = False,
    numerics: Profile = "float32",
    deviation: Annotated[
        list[str] | None, typer.Option(help="A known deviation of an engine to imitate. May be repeated.")
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(help="FILE[:STRENGTH]: an adapter to apply at run time. May be repeated."),
    ] = None,
    lora_rule: LoraRule = "trainer",
    embd_dir: Annotated[
        Path | None,
        typer.Option(
            "--embd-dir",
            help="A folder of learned embeddings (textual inversion): .pt, .bin, .safetensors. In a prompt the "
            "file's name stands for its vectors; with --like diffusers the token in the file. -v lists them.",
        ),
    ] = None,
    taps: Annotated[
        Path | None,
        typer.Option(
            help="Write text encodings, noise, every step, the latent and the picture to this .safetensors file."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the pictures and all settings, including defaults, as JSON.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Print what is read and how long each part takes.")
    ] = False,
) -> None:
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
    from refsd.pipelines.settings import Settings, read_sigmas, read_tiling

    tiling = read_tiling(vae_tile_size, vae_relative_tile_size, vae_tile_overlap)
    levels = None if sigmas is None else read_sigmas(sigmas)
    rule = GuidanceRule(
        guidance_rescale=guidance_rescale,
        skip_layers=read_layers(skip_layers),
        slg_scale=slg_scale,
        skip_layer_start=skip_layer_start,
        skip_layer_end=skip_layer_end,
    )
    settings = Settings(
        prompt=prompt,
        negative_prompt=negative_prompt,
        width=width,
        height=height,
        steps=steps if levels is None else len(levels) - 1,
        cfg_scale=cfg_scale,
        sampler=sampling_method,
        schedule=scheduler,
        rng=rng,
        clip_skip=clip_skip if clip_skip > 0 else None,
        eta=eta,
        sampler_rng=sampler_rng,
        sigmas=levels,
        tiling=tiling if vae_tiling else None,
        circular=CircularAxes(circular or circularx, circular or circulary),
        like=like,
        guidance=guidance,
        guidance_rule=rule._replace(**read_extra(extra_sample_args)),
        flow_shift=flow_shift,
        prediction=prediction,
        strength=strength,
        image_cfg_scale=img_cfg_scale,
        control_strength=control_strength,
        ip_scale=ip_scale,
        seed=seed if seed >= 0 else secrets.randbelow(2**31),
        batch_count=batch_count,
    )
    files = Files(
        model=model,
        output=output,
        vocab=vocab,
        numerics=numerics,
        deviations=tuple(deviation or ()),
        taps=taps,
        verbose=verbose,
        loras=tuple(lora or ()),
        parts=part_files(
            *(diffusion_model, vae, taesd, clip_l, clip_g, t5xxl, llm, control_net, ip_adapter),
            *(clip_vision, redux, llm_vision),
        ),
        images=image_files(init_img, mask, control_image, next(iter(ref_image or ()), None), redux_image),
        more_references=tuple(ref_image or ())[1:],
        ip_images=tuple(ip_image or ()),
        zero_cond_t=qwen_image_zero_cond_t,
        tokenizer=tokenizer,
        json=json,
        lora_rule=lora_rule,
        embeddings=embd_dir,
        preview=PreviewSettings(preview, preview_path, preview_interval, preview_noisy),
    )
    second = HiresSettings(
        upscaler=hires_upscaler,
        scale=hires_scale,
        width=hires_width,
        height=hires_height,
        steps=hires_steps,
        strength=hires_denoising_strength,
        sigmas=None if hires_sigmas is None else read_sigmas(hires_sigmas),
        tile_size=hires_upscale_tile_size,
    )
    draw(files, settings, second if hires else None)
