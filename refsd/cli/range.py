"""refsd range: the largest values inside a model, against float16's limit."""

from pathlib import Path
from typing import Annotated

import typer

from refsd.cli.json_output import print_json
from refsd.cli.parts import CHECKPOINT, T5XXL, ClipG, ClipL, Html, Llm, Tokenizer, Vae, Vocab, part_files

_LINES = 20


def range(
    model: Annotated[Path, typer.Argument(help=CHECKPOINT)],
    component: Annotated[str, typer.Option(help="diffusion, clip_l, vae-decoder, ...")] = "diffusion",
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", "-i", help="Arguments by name, as for `refsd forward`; without it, drawn ones."),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", help="Draw a picture: ranges of all that runs, in all steps."),
    ] = None,
    side: Annotated[
        int, typer.Option(min=8, max=4096, help="With --prompt: width and height of the picture, in pixels.")
    ] = 256,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="With --prompt: sampling steps.")] = 4,
    vae: Vae = None,
    clip_l: ClipL = None,
    clip_g: ClipG = None,
    t5xxl: T5XXL = None,
    llm: Llm = None,
    vocab: Vocab = None,
    tokenizer: Tokenizer = None,
    lines: Annotated[int, typer.Option(min=1, help="Layers to list, the largest first.")] = _LINES,
    as_json: Annotated[bool, typer.Option("--json", help="Print every layer as JSON.")] = False,
    html: Html = None,
) -> None:
    """Show the largest value of each layer's output, and of its product before the bias, against 65504.

    An engine that stores activations in float16 overflows above 65504. Values are the reference's, in float32.
    Drawn inputs have deviation 1. With --prompt the text goes through the model's own encoders, the latent through
    some steps and the decoder; parts that the file lacks are given as to `refsd txt2img`. Memory: one layer's
    weights at a time, and the activations of one call.

    Exit code 0: all fit. 1: some layer overflows. 2: bad input.
    """
    from refsd.diagnosis.html_pages import range_page, save
    from refsd.diagnosis.ranges import FLOAT16, in_order
    from refsd.golden.wording import counted
    from refsd.numerics.errors import BadInput
    from refsd.weights import open_checkpoint
    from refsd.weights.model_files import model_path

    parts = part_files(None, vae, None, clip_l, clip_g, t5xxl, llm, None)
    checkpoint = open_checkpoint(model_path(model), parts)
    if prompt is None:
        every, source = _of_one(checkpoint, component, inputs), str(inputs or "drawn inputs")
    elif inputs is not None or component != "diffusion":
        raise BadInput("--prompt: it runs all components on its own inputs; leave out --inputs and --component")
    else:
        every, source = _of_prompt(checkpoint, prompt, side, steps, (vocab, tokenizer, model)), f'prompt "{prompt}"'
    found = in_order(every)
    over = [one for one in found if not one.worst <= FLOAT16]
    if html is not None:
        save(html, range_page(every, model, source))
    if as_json:
        print_json([{**one._asdict(), "overflows": one in over} for one in found])
    else:
        share = f"{found[0].name} reaches {found[0].worst:.4g}, {found[0].worst / FLOAT16:.2%} of 65504"
        head = f"{counted(len(over), 'layer')} overflow float16: " if over else "nothing overflows float16: "
        typer.echo(head + share)
        typer.echo(f"{'largest':>10} {'product':>10} {'of 65504':>9} {'step':>5}  layer")
        for one in found[:lines]:
            product = "" if one.product is None else f"{one.product:.4g}"
            step = str(one.step or "")
            typer.echo(f"{one.largest:10.4g} {product:>10} {one.worst / FLOAT16:9.2%} {step:>5}  {one.name}")
    if over:
        raise typer.Exit(1)


def _of_one(checkpoint, component: str, inputs: Path | None) -> list:
    """Run one component once -> its ranges, in the order of computation."""
    import numpy as np

    from refsd.components import forward, load, resolve
    from refsd.diagnosis.ranges import Ranges, drawn_inputs
    from refsd.files.formats import open_weights
    from refsd.golden.named_numerics import named
    from refsd.progress.compiling import compile_progress

    part = resolve(checkpoint, component)
    m, params = load(checkpoint, part, named("float32", []))
    given = {name: np.asarray(t.values()) for name, t in open_weights(inputs).items()} if inputs else None
    m.taps = ranges = Ranges(m)
    with compile_progress():
        forward(part, m, given or drawn_inputs(part, m), params, str(inputs or "drawn inputs"))
    return ranges.found


def _of_prompt(checkpoint, prompt: str, side: int, steps: int, vocabularies) -> list:
    """Draw a picture -> the ranges of the encoders, the denoiser and the decoder."""
    from refsd.diagnosis.sampling_run import prompt_ranges
    from refsd.golden.named_numerics import named
    from refsd.pipelines.pipeline import open_pipeline
    from refsd.pipelines.prompts import Tokenizers
    from refsd.pipelines.settings import Settings
    from refsd.progress.compiling import compile_progress

    pipe = open_pipeline(checkpoint, Tokenizers(*vocabularies), named("float32", []))
    with compile_progress():
        return prompt_ranges(pipe, Settings(prompt, width=side, height=side, steps=steps))
