"""Vision towers: CLIP's and SigLIP's encoders of pictures, ViTs with learned positions.

Radford et al. 2021, section 2.4; Zhai et al. 2023 (SigLIP); key names as in transformers, modeling_clip.py and
modeling_siglip.py. A token is a square of `patch` pixels. CLIP puts a class token in front, whose last state is the
picture's embedding; SigLIP has none, a bias in its patches, and GELU's tanh form. refsd leaves out SigLIP's pooling
head, which no image model reads.
"""

import numpy as np

from refsd.models.clip import ACTIVATIONS, layer
from refsd.module import Module, block
from refsd.numerics.errors import BadInput


@block
def clip_vision(m: Module, x, num_heads=16, hidden_act="gelu", eps=1e-5):
    """Encode a picture.

    x:          [N, 3, H, W], normalised by CLIP's mean and deviation; of the size that the weights know
    hidden_act: a key of ACTIVATIONS: OpenAI's CLIP has quick_gelu, OpenCLIP gelu
    eps:        of every LayerNorm
    -> hidden:      [N, 1 + L, D], output of the last layer, class token first
       penultimate: [N, 1 + L, D], output of the last layer but one
       embeds:      [N, P], the class token's last state with the final LayerNorm and the projection
    """
    tower = m["vision_model"]
    patches = embeddings(tower["embeddings"], x)
    states = [tower.layer_norm("pre_layrnorm", patches, eps)]
    for i in range(tower.count("encoder.layers")):
        states.append(layer(tower["encoder.layers"][i], states[-1], num_heads, ACTIVATIONS[hidden_act], eps=eps))
    pooled = tower.layer_norm("post_layernorm", states[-1][:, 0], eps)
    return states[-1], states[-2], m.linear("visual_projection", pooled)


@block
def siglip_vision(m: Module, x, num_heads=16, eps=1e-6):
    """Encode a picture.

    x:          [N, 3, H, W], -1..1; of the size that the weights know
    eps:        of every LayerNorm
    -> hidden:  [N, L, D], output of the last layer with the final LayerNorm
    """
    m = m["vision_model"]
    h = embeddings(m["embeddings"], x)
    for i in range(m.count("encoder.layers")):
        h = layer(m["encoder.layers"][i], h, num_heads, Module.gelu_tanh, eps=eps)
    return m.layer_norm("post_layernorm", h, eps)


@block
def embeddings(m: Module, x):
    """Turn squares of pixels into tokens, CLIP's class token first, and add positions. [N, 3, H, W] -> [N, L, D]

    Pixels that fill no last square are cut off, as of SigLIP's 384 in squares of 14.
    Raises BadInput for a picture with another number of squares than the positions.
    """
    patch = m.shape("patch_embedding.weight")[2]
    h = m.conv2d("patch_embedding", x, stride=patch)
    h = h.reshape(*h.shape[:2], -1).swapaxes(1, 2)
    if f"{m.prefix}class_embedding" in m.weights:
        first = np.broadcast_to(m.weight("class_embedding"), (len(h), 1, h.shape[2]))
        h = np.concatenate([first.astype(h.dtype), h], axis=1)
    known = m.shape("position_embedding.weight")[0]
    if h.shape[1] != known:
        raise BadInput(
            f'x: {x.shape[2]} x {x.shape[3]} pixels make {h.shape[1]} tokens, and "{m.prefix}position_embedding" '
            f"has {known}: resize the picture"
        )
    return m.add(h, m.embedding("position_embedding", np.arange(known)))
