"""A twentieth fresh set, of models: from public trackers, drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injected_models import _model
from injection import Bug, wrong_operation
from twentieth_operations import TWENTIETH_OPERATIONS
from twentieth_steps import TWENTIETH_STEPS

# --- places ------------------------------------------------------------------------------------------------------


def _numbers_alone(values):
    """A picture's row and column are dropped: its tokens' time stands for all three."""
    places = values["positions"]
    return {**values, "positions": np.ascontiguousarray(np.repeat(places[..., :1], 3, axis=-1))}


def _references_of_items() -> Bug:
    """A batch's items stand as one item's references do: the n-th item's are 10 (n + 1) apart."""
    later: dict[str, np.ndarray] = {}

    def rope_angles(a, right, ids, axes_dim, theta):
        moved = np.array(ids)
        moved[..., 0] += np.where(moved[..., 0] > 0, 10, 0)
        later["angle"] = np.asarray(right(moved, axes_dim, theta))
        return right(ids, axes_dim, theta)

    def rope(a, right, x, angle):
        if len(x) == 2 and later["angle"].shape == np.shape(angle):
            angle = np.concatenate([np.asarray(angle), later["angle"]])
        return right(x, angle)

    return wrong_operation(rope_angles=rope_angles, rope=rope)


# --- attention and norms -----------------------------------------------------------------------------------------


def _group_outside(a, right, q, k, v, *rest, **named):
    """The last product's columns are stored with the place in a group outside, and the head of keys inside."""
    y, (H, G) = np.asarray(right(q, k, v, *rest, **named)), (q.shape[2], k.shape[2])
    return y[:, :, np.arange(H).reshape(G, H // G).T.ravel()] if H != G else y


def _final_norm_as_stored(weights):
    """Of all norms the last one does not add 1."""
    name = "model.norm.weight"
    stored = weights[name]
    return {**weights, name: stored._replace(data=(stored.values() - 1).astype(stored.data.dtype))}


_TABLE = {
    "ty-te-01": (
        "model",
        "nntile/nntile#347, what its review finds",
        _model(
            wrong_operation(attention=_group_outside),
            "attn|attention|layers|o_proj",
            "head|group|order|permut|interleav|exchang",
            "qwen3-4b/qwen3/whole",
            "qwen3-4b/qwen3/padded",
            "qwen3-4b/qwen3/quiet",
        ),
    ),
    "ty-te-02": (
        "model",
        "sgl-project/sglang#35744",
        _model(
            Bug(inputs=_numbers_alone),
            "rope|attn|attention|layers|angle",
            "position|place|grid|row|column|number|time|axis|axes|as (words|text)",
            "qwen2.5-vl-7b/qwen2_5_vl/image",
            "qwen3-vl-4b/qwen3_vl/image",
            "qwen3-vl-4b/qwen3_vl/pictures",
        ),
    ),
    "ty-te-03": (
        "model",
        "warpfront/hipfire#228",
        _model(
            Bug(weights=_final_norm_as_stored),
            "norm|last_hidden_state|hidden",
            r"\b1\b|plus one|weight",
            "gemma2-2b/gemma2/padded",
        ),
    ),
    "ty-te-04": (
        "model",
        "openvinotoolkit/openvino.genai#4305, what its review finds",
        _model(
            Bug(answer=lambda case, inputs, y: {**y, "penultimate": y["last_hidden_state"]}),
            "penultimate",
            "last|final|layer|hidden",
            "qwen3-4b/qwen3/whole",
            "qwen3-4b/qwen3/padded",
        ),
    ),
    "ty-mod-01": (
        "model",
        "huggingface/diffusers#13811 and #13923",
        _model(
            _references_of_items(),
            "rope|attn|attention|angle|block|stream",
            "position|place|reference|item|10|batch|apart|axis",
            "flux2-dev/flux2/reference",
        ),
    ),
    "ty-mod-02": (
        "model",
        "ml-explore/mlx#210",
        _model(
            wrong_operation(layer_norm=lambda a, right, x, weight=None, bias=None, eps=1e-5: x),
            "norm3|cross_attn|block",
            "norm.*(left out|missing|not|skipped|without|ignored|input)|without.*norm|no norm|not normed|passes",
            "wan/wan/frames",
            "wan/wan/picture",
        ),
    ),
    "ty-mod-03": ("model", "1bit-MONSTER/1bit-MONSTER#2631, a vendor's tiles", None),
    "ty-mod-04": ("model", "Comfy-Org/ComfyUI#13625, guides of several frames in the middle of a film", None),
    "ty-mod-05": (
        "model",
        "Comfy-Org/ComfyUI#12709, what its review finds: the size of latents that are pixels",
        None,
    ),
}
TWENTIETH: dict[str, HeldOut] = {
    **TWENTIETH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **TWENTIETH_STEPS,
}
