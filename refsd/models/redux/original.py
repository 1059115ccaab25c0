"""Diffusers' encoder of FLUX.1 Redux."""

from pathlib import Path

from refsd.networks.original import Original


def _load(path: Path, dtype):
    """Load diffusers' class, which the package does not export."""
    from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder

    return ReduxImageEncoder.from_pretrained(path / "image_embedder", torch_dtype=dtype, local_files_only=True)


def _run(model, x, params):
    return {"out": model(x["x"]).image_embeds}


ORIGINALS = {
    "redux": Original("diffusers", "image_embedder", _load, _run),
}
