"""FLUX.1 Redux: a picture as words, tokens that are appended to T5's.

Black Forest Labs 2024, flux/modules/image_embedders.py; key names as there. SigLIP encodes the picture; two linear
layers bring its tokens to the width of T5's hidden states.
"""

from refsd.module import Module, block


@block
def redux(m: Module, x):
    """x [N, L, D], SigLIP's hidden states -> [N, L, E], to follow the text in the context"""
    return m.linear("redux_down", m.silu(m.linear("redux_up", x)))
