"""Normalisations and softmax. Variances are biased."""

import math

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate.node import Node, operator


def _normalised(x, axes, epsilon):
    mean = x.mean(axis=axes, keepdims=True)
    deviation = x - mean
    inverse = 1 / np.sqrt(np.square(deviation).mean(axis=axes, keepdims=True) + x.dtype.type(epsilon))
    return deviation * inverse, mean, inverse


def _by_channel(weight, ndim: int):
    return weight.reshape((-1,) + (1,) * (ndim - 2))


@operator("BatchNormalization")
def batch_normalization(node: Node, x, scale, bias, mean, var):
    if node.attribute("training_mode", 0):
        raise ValueError("batch normalisation in training mode")
    scale, bias, mean, var = (_by_channel(one, x.ndim) for one in (scale, bias, mean, var))
    return (x - mean) / np.sqrt(var + node.attribute("epsilon", 1e-5)) * scale + bias


@operator("InstanceNormalization")
def instance_normalization(node: Node, x, scale, bias):
    y, _, _ = _normalised(x, tuple(range(2, x.ndim)), node.attribute("epsilon", 1e-5))
    return y * _by_channel(scale, x.ndim) + _by_channel(bias, x.ndim)


@operator("GroupNormalization", since=18)
def group_normalization(node: Node, x, scale, bias):
    """Version 18 has a scale for each group, version 21 one for each channel."""
    groups = node.attribute("num_groups")
    if groups < 1 or x.shape[1] % groups:
        raise BadInput(f"{groups} groups of {x.shape[1]} channels")
    rows = x.reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)
    y, _, _ = _normalised(rows, (2,), node.attribute("epsilon", 1e-5))
    if node.version < 21:
        return (y * scale[:, None] + bias[:, None]).reshape(x.shape)
    return y.reshape(x.shape) * _by_channel(scale, x.ndim) + _by_channel(bias, x.ndim)


@operator("LayerNormalization")
def layer_normalization(node: Node, x, scale, bias=None):
    axes = tuple(range(node.axis(node.attribute("axis", -1), x.ndim), x.ndim))
    y, mean, inverse = _normalised(x, axes, node.attribute("epsilon", 1e-5))
    y = y * scale
    return (y if bias is None else y + bias), mean, inverse


@operator("RMSNormalization", since=23)
@operator("SimplifiedLayerNormalization")
def rms_normalization(node: Node, x, scale):
    axes = tuple(range(node.axis(node.attribute("axis", -1), x.ndim), x.ndim))
    square = np.square(x).mean(axis=axes, keepdims=True)
    return x / np.sqrt(square + node.attribute("epsilon", 1e-5)) * scale


@operator("LpNormalization")
def lp_normalization(node: Node, x):
    axis, p = node.axis(node.attribute("axis", -1), x.ndim), node.attribute("p", 2)
    length = (
        np.abs(x).sum(axis=axis, keepdims=True) if p == 1 else np.sqrt(np.square(x).sum(axis=axis, keepdims=True))
    )
    return np.where(length == 0, 0, x / np.where(length == 0, 1, length))


def _softmax(x, axis):
    most = x.max(axis=axis, keepdims=True, initial=-np.inf)
    power = np.exp(x - most)
    return power / power.sum(axis=axis, keepdims=True)


def _log_softmax(x, axis):
    y = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
    return y - np.log(np.exp(y).sum(axis=axis, keepdims=True))


_OVER_AN_AXIS = {"Softmax": _softmax, "LogSoftmax": _log_softmax}


@operator(*_OVER_AN_AXIS, since=13)
def softmax(node: Node, x):
    return _OVER_AN_AXIS[node.op](x, node.axis(node.attribute("axis", -1), x.ndim))


@operator(*_OVER_AN_AXIS)
def softmax_flattened(node: Node, x):
    """Before version 13: over all axes from the given one on."""
    axis = node.axis(node.attribute("axis", 1), x.ndim)
    return _OVER_AN_AXIS[node.op](x, tuple(range(axis, x.ndim)))


@operator("Hardmax", since=13)
def hardmax(node: Node, x):
    """1 at the first maximum, else 0."""
    axis = node.axis(node.attribute("axis", -1), x.ndim)
    y = np.zeros_like(x)
    np.put_along_axis(y, np.expand_dims(np.argmax(x, axis), axis), 1, axis)
    return y
