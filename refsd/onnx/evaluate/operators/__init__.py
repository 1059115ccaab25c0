"""Operators of ONNX, a page for each kind: importing this folder registers them all."""

from refsd.golden.pages import modules

modules(__name__)
