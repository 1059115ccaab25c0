"""Diffusers' UNet, called as its pipelines call it."""

from typing import Any

from refsd.networks.original import Arguments, Given, diffusers, refuse, sample, timesteps
from refsd.numerics.errors import BadInput

UNREAD = ("class_labels", "timestep_cond", "attention_mask", "cross_attention_kwargs")


def _run(model, x, params):
    return {"out": model(x["x"], x["timesteps"], x["context"], added_cond_kwargs=added_condition(model, x)).sample}


def added_condition(model, x):
    """Split SDXL's y, which has the sizes embedded already; the model's size embedding becomes the identity."""
    if "y" not in x:
        return None
    import torch

    model.add_time_proj = torch.nn.Identity()
    return {"text_embeds": x["y"][:, :1], "time_ids": x["y"][:, 1:]}


def _read(model, given: Given) -> Arguments:
    more = ("down_block_additional_residuals", "mid_block_additional_residual")
    refuse(given, *UNREAD, *more, "down_intrablock_additional_residuals", "encoder_attention_mask")
    return Arguments(latent_and_text(model, given), {}, lambda y: {"out": sample(y)})


def latent_and_text(model, given: Given) -> dict[str, Any]:
    x = given["sample"]
    inputs = {"x": x, "timesteps": timesteps(given, "timestep", len(x)), "context": given["encoder_hidden_states"]}
    added = given.get("added_cond_kwargs")
    if added:
        import torch

        if {*added} != {"text_embeds", "time_ids"}:
            raise BadInput(
                f"added_cond_kwargs has {', '.join(sorted(added))}; refsd computes text_embeds, time_ids"
            )
        # The projection has no weights; the module casts its output to the dtype of the text.
        sizes = model.add_time_proj(added["time_ids"].flatten()).reshape(len(x), -1)
        inputs["y"] = torch.cat([added["text_embeds"], sizes.to(added["text_embeds"].dtype)], 1)
    return inputs


ORIGINALS = {
    "unet": diffusers("unet", "UNet2DConditionModel", _run, read=_read),
}
