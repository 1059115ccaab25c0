"""Activations with parameters. Others that ONNX defines by simpler operators run by that definition."""

import numpy as np
from scipy import special

from refsd.kernels import activations
from refsd.onnx.evaluate.node import Node, operator


@operator("Gelu", since=20)
@operator("Gelu", domain="com.microsoft")
def gelu(node: Node, x):
    """x Phi(x), Phi by erfc, which keeps its digits far below zero; or the approximation by tanh."""
    kernel = activations.gelu_tanh if node.attribute("approximate", "none") == "tanh" else activations.gelu
    return kernel(np.ascontiguousarray(x))


@operator("QuickGelu", domain="com.microsoft")
def quick_gelu(node: Node, x):
    return x * special.expit(node.attribute("alpha", 1.702) * x)


@operator("LeakyRelu")
def leaky_relu(node: Node, x):
    return np.where(x < 0, node.attribute("alpha", 0.01) * x, x)


@operator("PRelu")
def p_relu(node: Node, x, slope):
    node.room(x.shape)
    return np.where(x < 0, slope * x, x)


@operator("Elu")
def elu(node: Node, x):
    return np.where(x < 0, node.attribute("alpha", 1.0) * np.expm1(np.minimum(x, 0)), x)


@operator("Selu")
def selu(node: Node, x):
    alpha, gamma = (
        node.attribute("alpha", 1.67326319217681884765625),
        node.attribute("gamma", 1.05070102214813232421875),
    )
    return gamma * np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


@operator("HardSigmoid")
def hard_sigmoid(node: Node, x):
    return np.clip(node.attribute("alpha", 0.2) * x + node.attribute("beta", 0.5), 0, 1)


@operator("HardSwish")
def hard_swish(node: Node, x):
    return x * np.clip(x / 6 + 0.5, 0, 1)


@operator("Swish", since=24)
def swish(node: Node, x):
    return x * special.expit(node.attribute("alpha", 1.0) * x)


@operator("Dropout")
def dropout(node: Node, x, ratio=None, training=None):
    """Nothing is dropped: refsd runs models that are trained."""
    if training is not None and bool(training):
        raise ValueError("dropout in training mode draws random numbers")
    return x, np.ones(x.shape, bool)
