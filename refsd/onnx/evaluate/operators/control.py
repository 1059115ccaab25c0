"""Graphs within a node: If, Loop, Scan."""

import numpy as np

from refsd.onnx.evaluate.budget import MOST_NODES
from refsd.onnx.evaluate.node import Node, operator


@operator("If")
def if_(node: Node, condition):
    branch = node.attribute("then_branch" if bool(condition.reshape(())) else "else_branch")
    return tuple(node.run_graph(branch, []))


@operator("Loop")
def loop(node: Node, most=None, condition=None, *carried):
    """Runs while the condition holds, `most` times at most. -> what is carried, then all iterations' scans."""
    body = node.attribute("body")
    limit = MOST_NODES + 1 if most is None else int(most.reshape(()))
    goes_on = condition is None or bool(condition.reshape(()))
    state, scans, i = list(carried), [[] for _ in body.output[1 + len(carried) :]], 0
    while goes_on and i < limit:
        node.budget.step()
        again, *values = node.run_graph(body, [np.array(i, np.int64), np.array(goes_on), *state])
        state, goes_on = values[: len(carried)], bool(again.reshape(()))
        for scan, value in zip(scans, values[len(carried) :], strict=True):
            node.room((len(scan) + 1, *value.shape), value.itemsize)
            scan.append(value)
        i += 1
    return (*state, *(np.stack(scan) if scan else np.zeros((0,), node.rules.dtype) for scan in scans))


@operator("Scan", since=9)
def scan(node: Node, *inputs):
    """Runs once for each slice of the scanned inputs. -> the final state, then all outputs stacked."""
    body, count = node.attribute("body"), node.attribute("num_scan_inputs")
    states, scanned = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
    axes = node.attribute("scan_input_axes", [0] * count)
    backwards = node.attribute("scan_input_directions", [0] * count)
    scanned = [
        np.moveaxis(x, axis, 0)[:: -1 if back else 1]
        for x, axis, back in zip(scanned, axes, backwards, strict=True)
    ]
    outputs: list[list[np.ndarray]] = [[] for _ in body.output[len(states) :]]
    for slices in zip(*scanned, strict=True):
        node.budget.step()
        values = node.run_graph(body, [*states, *slices])
        states = values[: len(states)]
        for made, value in zip(outputs, values[len(states) :], strict=True):
            node.room((len(made) + 1, *value.shape), value.itemsize)
            made.append(value)
    turned = node.attribute("scan_output_directions", [0] * len(outputs))
    along = node.attribute("scan_output_axes", [0] * len(outputs))
    stacked = [
        np.stack(made[:: -1 if back else 1], axis) for made, back, axis in zip(outputs, turned, along, strict=True)
    ]
    return (*states, *stacked)
