"""Run SD 1.x inside sd-cli: the UNet, CLIP and autoencoder of one checkpoint."""

import numpy as np
from PIL import Image

from refsd.engines.sdcpp.reach import LATENT, Call, Reach, f32, outputs, refuses_size, scratch, size, whole_file
from refsd.golden.case import Case

_TOKENS = 77
_EOS = 49407
_UNET_INPUTS = ("x", "timesteps", "context")


def _unet(call: Call) -> dict[str, np.ndarray]:
    """Run each item of the batch as one step without guidance."""
    rows = zip(*(call.arrays[name] for name in _UNET_INPUTS), strict=True)
    items = [(f32(x), f32(t).reshape(1), f32(c)) for x, t, c in rows]
    args = [*call.args, *size(call.arrays["x"], LATENT), "--steps", str(len(items)), "--sampling-method", "euler"]
    return {"out": outputs(call, [*args, "-p", "a", "--cfg-scale", "1"], items)}


def _clip(call: Call) -> dict[str, np.ndarray]:
    """Encode each item as one 77-token chunk of a prompt with as many chunks as the batch has items."""
    ids = call.arrays["input_ids"].astype(np.int32)
    mask = np.zeros((_TOKENS, _TOKENS), np.float32)
    prompt = " ".join(["cat"] * (75 * (len(ids) - 1) + 1))
    items = [(row, mask) for row in ids]
    hidden = outputs(call, [*call.args, "-p", prompt, "-W", "64", "-H", "64"], items, fed=1)
    # sd-cli computes no pooled vector for SD 1.x; it is the row of the hidden states at the first EOS token.
    first_eos = np.argmax(ids == call.case.params.get("eos", _EOS), axis=1)
    return {"last_hidden_state": hidden, "pooled": hidden[np.arange(len(ids)), first_eos]}


def vae_decoder(call: Call) -> dict[str, np.ndarray]:
    """Decode each item as one picture of a batch."""
    items = [(f32(z),) for z in call.arrays["z"]]
    args = [*call.args, *size(call.arrays["z"], LATENT), "--steps", "1", "-b", str(len(items))]
    with scratch() as folder:
        args += ["-p", "a", "--cfg-scale", "1", "-o", str(folder / "out.png")]
        return {"out": outputs(call, args, items)}


def vae_encoder(call: Call) -> dict[str, np.ndarray]:
    mean, logvar = np.split(encoded(call), 2, axis=1)
    return {"mean": mean, "logvar": logvar}


def encoded(call: Call) -> np.ndarray:
    """Encode each item as the input picture of a separate process."""
    answers = []
    for x in call.arrays["x"]:
        with scratch() as folder:
            picture = folder / "in.png"
            Image.new("RGB", x.shape[:0:-1]).save(picture)
            args = [*call.args, *size(call.arrays["x"], 1), "--steps", "1", "-p", "a", "-i", str(picture)]
            answers.append(outputs(call, args, [(f32(x),)])[0])
    return np.stack(answers)


def refuses_unet(case: Case) -> str | None:
    if case.inputs["context"].shape[1] != _TOKENS:
        return f"sd-cli's prompt makes {_TOKENS} tokens of context"
    return refuses_size(case.inputs["x"].shape, LATENT)


def _refuses_clip(case: Case) -> str | None:
    if case.params.get("clip_skip", 1) != 1:
        return "pooled comes from the last layer: it is not computed with clip_skip"
    return None if case.inputs["input_ids"].shape[1] == _TOKENS else f"sd-cli encodes {_TOKENS} tokens at a time"


def refuses_picture(case: Case) -> str | None:
    return refuses_size(case.inputs["x"].shape, 1)


def refuses_latent(case: Case) -> str | None:
    return refuses_size(case.inputs["z"].shape, LATENT)


REACHES: dict[tuple[str, str], Reach] = {
    ("sd15", "model/unet"): Reach(_unet, refuses_unet, whole_file, ("sdcpp/group-norm-eps", "sdcpp/gelu-tanh")),
    ("sd15", "model/clip"): Reach(_clip, _refuses_clip, whole_file),
    ("sd15", "model/vae-encoder"): Reach(vae_encoder, refuses_picture, whole_file),
    ("sd15", "model/vae-decoder"): Reach(vae_decoder, refuses_latent, whole_file),
}
