"""Diffusers' AutoencoderKL."""

from refsd.networks.original import Arguments, Given, Reader, diffusers


def _encode(model, x, params):
    moments = model.encoder(x["x"])
    if model.quant_conv is not None:
        moments = model.quant_conv(moments)
    mean, logvar = moments.chunk(2, dim=1)
    return {"mean": mean, "logvar": logvar}


def _decode(model, x, params):
    return {"out": model.decode(x["z"]).sample}


def _read_encoder(model, given: Given) -> Arguments:
    def outputs(moments):
        mean, logvar = moments.chunk(2, dim=1)
        return {"mean": mean, "logvar": logvar}

    return Arguments({"x": next(iter(given.values()))}, {}, outputs)


def _read_decoder(model, given: Given) -> Arguments:
    return Arguments({"z": next(iter(given.values()))}, {}, lambda y: {"out": y})


ORIGINALS = {
    "vae-encoder": diffusers("vae", "AutoencoderKL", _encode),
    "vae-decoder": diffusers("vae", "AutoencoderKL", _decode),
}
# Name of the module's class -> readers of its calls.
READERS = {
    "AutoencoderKL": (
        Reader("vae-encoder", _read_encoder, ("encoder",), ("quant_conv", "encoder")),
        Reader("vae-decoder", _read_decoder, ("post_quant_conv", "decoder"), ("decoder",)),
    ),
}
