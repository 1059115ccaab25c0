"""refsd txt2img: a picture from a prompt, under sd-cli's flag names and defaults."""

from pathlib import Path
from typing import Annotated

import typer

PROFILES = ("float64", "float32", "torch-f16", "torch-bf16", "ggml-cpu", "ggml-cpu-flash", "winograd-f16")


def register(app: typer.Typer) -> None:
    app.command("txt2img")(txt2img)


def txt2img(
    model: Annotated[
        Path, typer.Option("-m", "--model", help="A .safetensors or .gguf file, or a diffusers folder.")
    ],
    prompt: Annotated[
        str, typer.Option("-p", "--prompt", help="What to draw; (x:1.2), [x] and BREAK as in A1111.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .png file.")] = Path("output.png"),
    negative_prompt: Annotated[str, typer.Option("-n", "--negative-prompt", help="What not to draw.")] = "",
    width: Annotated[int, typer.Option("-W", "--width", help="Pixels; goes up to a multiple of 64.")] = 512,
    height: Annotated[int, typer.Option("-H", "--height", help="Pixels; goes up to a multiple of 64.")] = 512,
    steps: Annotated[int, typer.Option("--steps", help="Number of sampling steps.")] = 20,
    cfg_scale: Annotated[float, typer.Option("--cfg-scale", help="1 leaves the negative prompt out.")] = 7.0,
    sampling_method: Annotated[
        str,
        typer.Option("--sampling-method", help="euler, euler_a, heun, dpm++2m, ...; a wrong one lists them all."),
    ] = "euler_a",
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            help="discrete, karras, ...; a wrong one lists them all. Default: lcm for lcm and tcd, "
            "simple for ddim_trailing, else discrete.",
        ),
    ] = None,
    sigmas: Annotated[
        str | None, typer.Option("--sigmas", help="Instead of a schedule: 14.61,7.8,3.5,0; --steps does not count.")
    ] = None,
    eta: Annotated[
        float | None,
        typer.Option("--eta", help="Share of fresh noise, of samplers that draw any. Default: as sd-cli's."),
    ] = None,
    seed: Annotated[int, typer.Option("-s", "--seed", help="Below 0: a random one, which is shown.")] = 42,
    rng: Annotated[
        str, typer.Option("--rng", help="cuda (Philox, as A1111), cpu (as torch and ComfyUI), cpu_sdcpp.")
    ] = "cuda",
    sampler_rng: Annotated[
        str | None, typer.Option("--sampler-rng", help="Of the noise between the steps. Default: --rng's stream.")
    ] = None,
    clip_skip: Annotated[int, typer.Option("--clip-skip", help="2 leaves out CLIP's last layer; below 1: 1.")] = -1,
    batch_count: Annotated[
        int, typer.Option("-b", "--batch-count", help="Pictures, of seeds counting up: cat_0.png, cat_1.png, ...")
    ] = 1,
    vae_tiling: Annotated[
        bool, typer.Option("--vae-tiling", help="Decode in tiles: less memory, another picture.")
    ] = False,
    vae_tile_size: Annotated[
        str | None, typer.Option("--vae-tile-size", help="Latent pixels: 32, or 32x24 (X x Y); below 4: 32.")
    ] = None,
    vae_relative_tile_size: Annotated[
        str | None,
        typer.Option(
            "--vae-relative-tile-size",
            help="0.5 or 0.5x0.25: parts of the latent; above 1: how many tiles. Before --vae-tile-size.",
        ),
    ] = None,
    vae_tile_overlap: Annotated[
        float, typer.Option("--vae-tile-overlap", help="Part of a tile that its neighbours share; 0 to 0.5.")
    ] = 0.5,
    circular: Annotated[bool, typer.Option("--circular", help="All edges meet: the picture tiles.")] = False,
    circularx: Annotated[bool, typer.Option("--circularx", help="The left and the right edge meet.")] = False,
    circulary: Annotated[bool, typer.Option("--circulary", help="The top and the bottom edge meet.")] = False,
    vocab: Annotated[
        Path | None, typer.Option(help="CLIP's tokenizer.json, merges.txt or bpe_simple_vocab_16e6.txt.gz.")
    ] = None,
    numerics: Annotated[str, typer.Option(help=f"{', '.join(PROFILES)}.")] = "float32",
    deviation: Annotated[
        list[str] | None, typer.Option(help="A declared deviation of an engine to apply; may be repeated.")
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(help="FILE[:STRENGTH]: an adapter to apply as the model runs; may be repeated."),
    ] = None,
    taps: Annotated[
        Path | None,
        typer.Option(help="Safetensors file for text encodings, noise, every step, latent and picture."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Say what is read and how long each part took.")
    ] = False,
) -> None:
    """Make a picture with Stable Diffusion 1.x, in stable-diffusion.cpp's order of operations."""
    import secrets

    from refsd.pipelines.job import Job, run
    from refsd.pipelines.sampling import default_schedule
    from refsd.pipelines.settings import Settings, read_sigmas
    from refsd.pipelines.tiles import read_tiling
    from refsd.seams import Seams

    tiling = read_tiling(vae_tile_size, vae_relative_tile_size, vae_tile_overlap)
    levels = None if sigmas is None else read_sigmas(sigmas)
    settings = Settings(
        prompt,
        negative_prompt,
        width,
        height,
        steps if levels is None else len(levels) - 1,
        cfg_scale,
        sampling_method,
        default_schedule(sampling_method) if scheduler is None else scheduler,
        rng,
        max(clip_skip, 1),
        eta,
        sampler_rng,
        levels,
        tiling if vae_tiling else None,
        Seams(circular or circularx, circular or circulary),
    )
    seed = seed if seed >= 0 else secrets.randbelow(2**31)
    files = (model, settings, seed, batch_count, output, vocab)
    run(Job(*files, numerics, deviation or [], taps, verbose, tuple(lora or ())))
