"""refsd quality: what each storage type costs a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from refsd.cli.json_output import print_json
from refsd.cli.parts import CHECKPOINT, Html


def quality(
    model: Annotated[Path, typer.Argument(help=CHECKPOINT)],
    types: Annotated[
        str,
        typer.Option(
            help="With commas: block types, q4_0+int8 (W4A8), comfy-int8, comfy-int8-convrot, comfy-fp8, "
            "w4a8, convrot-w4a4, nvfp4-w4a4, mxfp8-w8a8, mxfp4-w4a4."
        ),
    ] = "q8_0,q6_k,q5_k,q4_k,q4_0,q3_k",
    component: Annotated[str, typer.Option(help="diffusion, clip_l, t5xxl, ...")] = "diffusion",
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", "-i", help="Arguments by name, as for `refsd forward`; without it, drawn ones."),
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(help="FILE[:STRENGTH]: an adapter; a row for it merged and quantized, one for it beside."),
    ] = None,
    cache: Annotated[
        list[str] | None,
        typer.Option(help="NAME[:OPTIONS]: a cache of txt2img, instead of types. May be repeated."),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=0, max=1000, help="Steps of the sampling run that measures drift; 0: no run.")
    ] = 4,
    lines: Annotated[int, typer.Option(min=0, help="Layers to list for each type, the costliest first.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print every layer as JSON.")] = False,
    html: Html = None,
) -> None:
    """Show what each storage type costs: error of the output, drift of a sampling run, the costliest layers.

    The file's matrices are quantized as ggml does, without an importance matrix and with one collected from the
    same inputs, and the component runs in float32. comfy-int8 and the like are ComfyUI's products: they
    round activations as well, as TYPE+int8 (+fp8, +nvfp4, +mxfp8, +mxfp4) does. Drawn inputs have deviation 1; for
    those of a real prompt give --inputs. Layers whose rows are no whole blocks stay as they are: the table counts
    those that were quantized.
    Drift is the relative distance of the last latent from that of the exact weights, after --steps of Euler from
    the same noise under the same conditions. Effect is what is left of a LoRA once it is merged and quantized, in
    the layer that keeps the least and in the one that keeps the most: changes below the steps of a file's blocks
    are lost. Below the table stands which types turned whole groups of weights into zeros, and which cover fewer
    layers than others. With --cache the run is repeated with each cache: the table shows how many steps took
    something from it, and how far the latent is after the last step from that of the run without it. Memory: one
    layer at a time, and quantized matrices up to a quarter of the machine's.
    """
    import numpy as np

    from refsd.caches import read_cache
    from refsd.components import resolve
    from refsd.diagnosis.cache_drift import cache_drift
    from refsd.diagnosis.html_pages import quality_page, save
    from refsd.diagnosis.quality import decibels, measure, remarks
    from refsd.diagnosis.ranges import drawn_inputs
    from refsd.diagnosis.sampling_run import drawn_run
    from refsd.files.formats import open_weights
    from refsd.files.storage import storage_of
    from refsd.golden.named_numerics import named
    from refsd.models.catalogue import DENOISERS
    from refsd.numerics.errors import BadInput
    from refsd.numerics.machine import memory
    from refsd.pipelines.loaded_component import load_component
    from refsd.progress.compiling import compile_progress
    from refsd.weights import open_checkpoint
    from refsd.weights.loras import open_loras
    from refsd.weights.model_files import model_path

    storages = [storage_of(name) for name in types.split(",")]
    checkpoint = open_checkpoint(model_path(model))
    part = resolve(checkpoint, component)
    loaded = load_component(checkpoint, part, named("float32", []), open_loras(lora or [], checkpoint))
    m = loaded.module
    arrays = {name: np.asarray(t.values()) for name, t in open_weights(inputs).items()} if inputs else None
    given = arrays or drawn_inputs(part, m)
    run = drawn_run(checkpoint, loaded, given, steps) if steps and part in DENOISERS else None
    if cache:
        if run is None or not steps:
            raise BadInput(f"--cache: {part} of {model} gives no sampling run, or --steps is 0")
        exact, drifts = run.latents(m), []
        for text in cache:
            name, _, options = text.partition(":")
            chosen = read_cache("--cache", name, options)
            cached = drawn_run(checkpoint, loaded, given, steps, chosen)
            assert cached is not None
            drifts.append(cache_drift(chosen, cached, m, exact))
            if not as_json:
                row = drifts[-1]
                typer.echo(f"{len(row.reused):3} of {steps} steps reused, drift {row.drift[-1]:9.3g}  {row.cache}")
        if as_json:
            print_json([row._asdict() for row in drifts])
        return
    rows = []
    if not as_json:
        effect = f"{'effect':>12}" if lora else ""
        start = f"{'type':18} {'matrix':>6} {'lora':>6} {'layers':>6} {'bits':>6}"
        typer.echo(f"{start} {'error':>9} {'dB':>6} {'largest':>9} {'drift':>9} {effect}  costliest layers")
    with compile_progress():
        for row in measure(part, m, given, loaded.params, storages, run, memory() // 4):
            rows.append(row)
            if not as_json:
                worst = ", ".join(f"{name} {error:.2g}" for name, error in list(row.layers.items())[:lines])
                matrix = "yes" if row.importance else "no"
                start = f"{row.type:18} {matrix:>6} {row.adapter:>6} {len(row.layers):6} {row.bits:6.3g}"
                errors = f"{row.error:9.3g} {decibels(row.error):6.1f} {row.largest:9.3g}"
                drift = f"{row.drift[-1]:.3g}" if row.drift else ""
                effect = f"{_range(row.effects):>12}" if lora else ""
                typer.echo(f"{start} {errors} {drift:>9} {effect}  {worst}")
    if not as_json:
        for remark in remarks(rows):
            typer.echo(remark)
    if html is not None:
        save(html, quality_page(rows, model))
    if as_json:
        print_json([row._asdict() for row in rows])


def _range(shares: Mapping[str, float]) -> str:
    """Return "28 to 30 %"."""
    if not shares:
        return ""
    least, most = (f"{100 * share:.0f}" for share in (min(shares.values()), max(shares.values())))
    return f"{least} %" if least == most else f"{least} to {most} %"
