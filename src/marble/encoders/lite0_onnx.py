"""EfficientNet-Lite0 as an ONNX graph, for ONNX Runtime: the fastest exact way to run it on a CPU.

The graph is built from the folded convolutions directly. It takes uint8 tiles (n, px, px, 3) of any size, so nothing
has to be normalised or transposed outside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from marble.encoders.encoder import RunTiles
from marble.encoders.lite0 import MEAN, STD, Conv

OPSET = 17
IR_VERSION = 9


def run_onnx(net: list[Conv]) -> RunTiles:
    """Run the folded network in ONNX Runtime; raises ImportError where onnx or onnxruntime is not installed."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # One thread per call: callers run several batches side by side, which is faster than sharing one convolution
    # between threads, and keeps the numbers independent of how many cores there are.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph(net).SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(tiles: NDArray[np.uint8]) -> NDArray[np.float32]:
        features: NDArray[np.float32] = session.run(["features"], {"tiles": tiles})[0]
        return features

    return run


def graph(net: list[Conv]) -> Any:
    """The ONNX model: tiles uint8 (n, px, px, 3) -> features float32 (n, 1280)."""
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, value: NDArray[Any]) -> str:
        constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    x = node("Cast", ["tiles"], "float", to=TensorProto.FLOAT)
    x = node("Transpose", [x], "planes", perm=[0, 3, 1, 2])  # (n, 3, px, px)
    x = node("Sub", [x, constant("mean", np.array(MEAN, np.float32))], "centred")
    x = node("Div", [x, constant("std", np.array(STD, np.float32))], "normalised")
    zero, six = constant("zero", np.array(0, np.float32)), constant("six", np.array(6, np.float32))
    kept = x
    for i, conv in enumerate(net):
        if conv.opens_block:
            kept = x
        weight = constant(f"weight{i}", conv.weight.numpy())
        bias = constant(f"bias{i}", conv.bias.numpy())
        stride = [conv.stride, conv.stride]
        x = node("Conv", [x, weight, bias], f"conv{i}", strides=stride, group=conv.groups, auto_pad="SAME_UPPER")
        if conv.relu6:
            x = node("Clip", [x, zero, six], f"relu{i}")
        if conv.adds_input:
            x = node("Add", [x, kept], f"sum{i}")
    pooled = node("GlobalAveragePool", [x], "pooled")
    node("Flatten", [pooled], "features")
    dim = net[-1].weight.shape[0]
    built = helper.make_graph(
        nodes,
        "efficientnet-lite0",
        [helper.make_tensor_value_info("tiles", TensorProto.UINT8, ["n", "height", "width", 3])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", dim])],
        constants,
    )
    return helper.make_model(built, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
