"""refsd txt2img: a picture from a prompt, under sd-cli's flag names."""

from pathlib import Path
from typing import Annotated

import typer

from refsd.cli.numerics import Profile
from refsd.cli.parts import T5XXL, ClipG, ClipL, ControlNet, DiffusionModel, Llm, LoraRule, Taesd, Vae, part_files

IMAGES, TILES = "Pictures to draw from", "Large pictures"


def register(app: typer.Typer) -> None:
    app.command("txt2img")(txt2img)


def txt2img(
    prompt: Annotated[
        str, typer.Option("-p", "--prompt", help=r"What to draw; (x:1.2), \[x] and BREAK as in A1111.")
    ],
    model: Annotated[
        Path | None, typer.Option("-m", "--model", help="A .safetensors or .gguf file, or a diffusers folder.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="A .png file.")] = Path("output.png"),
    negative_prompt: Annotated[
        str, typer.Option("-n", "--negative-prompt", help="What not to draw; read where --cfg-scale is not 1.")
    ] = "",
    width: Annotated[
        int, typer.Option("-W", "--width", help="Pixels; goes up to what the model takes. 0: --init-img's, or 512.")
    ] = 0,
    height: Annotated[int, typer.Option("-H", "--height", help="Likewise.")] = 0,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Default: the family's, 20 of a UNet, 4 of FLUX.1 schnell, ...")
    ] = None,
    cfg_scale: Annotated[
        float | None,
        typer.Option("--cfg-scale", help="1 leaves the negative prompt out: so FLUX and Z-Image; UNets 7."),
    ] = None,
    guidance: Annotated[
        float | None,
        typer.Option("--guidance", help="Of weights that embed it. Default: FLUX.1 3.5, Fill 30, FLUX.2 4."),
    ] = None,
    like: Annotated[
        str,
        typer.Option(
            "--like", help="sdcpp or diffusers: whose lengths, schedule, noise and img2img where they differ."
        ),
    ] = "sdcpp",
    sampling_method: Annotated[
        str | None,
        typer.Option(
            "--sampling-method",
            "--sampler",
            help="euler, heun, dpm++2m, ...; a wrong one lists them all. Default: euler_a for UNets, else euler.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            "--schedule",
            help="discrete, karras, flow_uniform, ...; a wrong one lists them all. Default: the family's and the "
            "engine's; lcm for lcm and tcd.",
        ),
    ] = None,
    sigmas: Annotated[
        str | None, typer.Option("--sigmas", help="Instead of a schedule: 14.61,7.8,3.5,0; --steps does not count.")
    ] = None,
    flow_shift: Annotated[
        float | None,
        typer.Option("--flow-shift", help="Of a rectified flow, 3 for SD 3; for FLUX its mu, else by the size."),
    ] = None,
    prediction: Annotated[
        str | None,
        typer.Option("--prediction", help="eps, v or edm_v: of a UNet. Default: as its folder says, or SD 2 acts."),
    ] = None,
    eta: Annotated[
        float | None,
        typer.Option("--eta", help="Share of fresh noise, of samplers that draw any. Default: as sd-cli's."),
    ] = None,
    seed: Annotated[int, typer.Option("-s", "--seed", help="Below 0: a random one, which is shown.")] = 42,
    rng: Annotated[
        str | None,
        typer.Option("--rng", help="cuda (Philox, as sd-cli and A1111) or cpu (as torch, diffusers, ComfyUI)."),
    ] = None,
    sampler_rng: Annotated[
        str | None, typer.Option("--sampler-rng", help="Of the noise between the steps. Default: --rng's stream.")
    ] = None,
    clip_skip: Annotated[
        int, typer.Option("--clip-skip", help="2 leaves out CLIP's last layer; below 1: the family's.")
    ] = -1,
    batch_count: Annotated[
        int, typer.Option("-b", "--batch-count", help="Pictures, of seeds counting up: cat_0.png, cat_1.png, ...")
    ] = 1,
    diffusion_model: DiffusionModel = None,
    vae: Vae = None,
    taesd: Taesd = None,
    clip_l: ClipL = None,
    clip_g: ClipG = None,
    t5xxl: T5XXL = None,
    llm: Llm = None,
    control_net: ControlNet = None,
    vocab: Annotated[
        Path | None,
        typer.Option(
            help="CLIP's tokenizer.json, merges.txt or bpe_simple_vocab_16e6.txt.gz.", rich_help_panel="Parts"
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="T5's, Qwen3's or Mistral's: tokenizer.json, spiece.model, a GGUF or a folder. Default: the "
            "model's or the encoder's own.",
            rich_help_panel="Parts",
        ),
    ] = None,
    init_img: Annotated[
        Path | None,
        typer.Option("-i", "--init-img", "--init-image", help="What to begin with.", rich_help_panel=IMAGES),
    ] = None,
    strength: Annotated[
        float,
        typer.Option("--strength", help="How much of it is drawn anew, 0 to 1.", rich_help_panel=IMAGES),
    ] = 0.75,
    mask: Annotated[
        Path | None, typer.Option("--mask", help="White where it is drawn anew.", rich_help_panel=IMAGES)
    ] = None,
    control_image: Annotated[
        Path | None,
        typer.Option(
            "--control-image", help="Of a ControlNet, or of FLUX.1 Canny and Depth.", rich_help_panel=IMAGES
        ),
    ] = None,
    control_strength: Annotated[
        float, typer.Option("--control-strength", help="Of a ControlNet.", rich_help_panel=IMAGES)
    ] = 0.9,
    ref_image: Annotated[
        Path | None,
        typer.Option(
            "-r",
            "--ref-image",
            help="To edit: of pix2pix, FLUX.1 Kontext, FLUX.2.",
            rich_help_panel=IMAGES,
        ),
    ] = None,
    img_cfg_scale: Annotated[
        float | None,
        typer.Option(
            "--img-cfg-scale", help="Of pix2pix. Default: --cfg-scale; diffusers 1.5.", rich_help_panel=IMAGES
        ),
    ] = None,
    vae_tiling: Annotated[
        bool,
        typer.Option("--vae-tiling", help="Decode in tiles: less memory, another picture.", rich_help_panel=TILES),
    ] = False,
    vae_tile_size: Annotated[
        str | None,
        typer.Option(
            "--vae-tile-size", help="Latent pixels: 32, or 32x24 (X x Y); below 4: 32.", rich_help_panel=TILES
        ),
    ] = None,
    vae_relative_tile_size: Annotated[
        str | None,
        typer.Option(
            "--vae-relative-tile-size",
            help="0.5 or 0.5x0.25: parts of the latent; above 1: how many tiles. Before --vae-tile-size.",
            rich_help_panel=TILES,
        ),
    ] = None,
    vae_tile_overlap: Annotated[
        float,
        typer.Option(
            "--vae-tile-overlap", help="Part of a tile that its neighbours share; 0 to 0.5.", rich_help_panel=TILES
        ),
    ] = 0.5,
    circular: Annotated[bool, typer.Option("--circular", help="All edges meet: the picture tiles. UNets.")] = False,
    circularx: Annotated[bool, typer.Option("--circularx", help="The left and the right edge meet.")] = False,
    circulary: Annotated[bool, typer.Option("--circulary", help="The top and the bottom edge meet.")] = False,
    numerics: Profile = "float32",
    deviation: Annotated[
        list[str] | None, typer.Option(help="A declared deviation of an engine to apply; may be repeated.")
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(help="FILE[:STRENGTH]: an adapter to apply as the model runs; may be repeated."),
    ] = None,
    lora_rule: LoraRule = "trainer",
    taps: Annotated[
        Path | None,
        typer.Option(help="Safetensors file for text encodings, noise, every step, latent and picture."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the pictures and every setting, defaults filled in, as JSON.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Say what is read and how long each part took.")
    ] = False,
) -> None:
    """Make a picture from a prompt: SD 1, 2, XL, 3, FLUX.1, FLUX.2, Chroma, Z-Image.

    The model is one file, a diffusers folder, or its parts: --diffusion-model, --vae or --taesd, and the family's
    text encoders. What is missing is named.
    """
    import secrets

    from refsd.pipelines.pictures import Files, draw
    from refsd.pipelines.settings import Settings, read_sigmas, read_tiling
    from refsd.seams import Seams

    tiling = read_tiling(vae_tile_size, vae_relative_tile_size, vae_tile_overlap)
    levels = None if sigmas is None else read_sigmas(sigmas)
    images = {"--init-img": init_img, "--mask": mask, "--control-image": control_image, "--ref-image": ref_image}
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
        seams=Seams(circular or circularx, circular or circulary),
        like=like,
        guidance=guidance,
        flow_shift=flow_shift,
        prediction=prediction,
        strength=strength,
        image_cfg_scale=img_cfg_scale,
        control_strength=control_strength,
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
        parts=part_files(diffusion_model, vae, taesd, clip_l, clip_g, t5xxl, llm, control_net),
        images={flag: file for flag, file in images.items() if file is not None},
        tokenizer=tokenizer,
        json=json,
        lora_rule=lora_rule,
    )
    draw(files, settings)
