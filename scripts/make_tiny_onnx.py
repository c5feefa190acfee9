#!/usr/bin/env python3
"""Writes examples/tiny.onnx: a small classifier with a symbolic batch, in the exporters' own style (Gemm, LayerNorm
decomposed into primitive operators, GELU by Erf, Softmax), so that `fuseloom run examples/tiny.onnx` shows fusion at work.

    python3 scripts/make_tiny_onnx.py examples/tiny.onnx

Needs the standard library only: protobuf's wire format is a few lines. The weights are a fixed sequence."""
import struct
import sys

FLOAT, INT64 = 1, 7   # TensorProto.DataType


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(field, value):
    return varint(field << 3) + varint(value)


def data(field, payload):
    payload = payload.encode() if isinstance(payload, str) else payload
    return varint(field << 3 | 2) + varint(len(payload)) + payload


def tensor(name, dims, dtype, raw):
    return b"".join(integer(1, d) for d in dims) + integer(2, dtype) + data(8, name) + data(9, raw)


def floats(name, dims, values):
    return tensor(name, dims, FLOAT, struct.pack(f"<{len(values)}f", *values))


def value_info(name, dims):
    shape = b"".join(data(1, integer(1, d) if isinstance(d, int) else data(2, d)) for d in dims)
    return data(1, name) + data(2, data(1, integer(1, FLOAT) + data(2, shape)))


def attribute(name, value):
    if isinstance(value, int):
        return data(1, name) + integer(3, value) + integer(20, 2)
    return data(1, name) + b"".join(integer(8, v) for v in value) + integer(20, 7)


def node(op, inputs, outputs, **attributes):
    out = b"".join(data(1, i) for i in inputs) + b"".join(data(2, o) for o in outputs)
    out += data(3, outputs[0]) + data(4, op)
    return out + b"".join(data(5, attribute(n, v)) for n, v in attributes.items())


def weights(count, scale):
    state, out = 1, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % (1 << 31)
        out.append(scale * (state / (1 << 30) - 1))
    return out


def model(features=16, hidden=24, classes=4):
    initializers = [
        floats("w1", [features, hidden], weights(features * hidden, 0.5)), floats("b1", [hidden], weights(hidden, 0.1)),
        floats("scale", [hidden], [1 + w for w in weights(hidden, 0.1)]), floats("shift", [hidden], weights(hidden, 0.1)),
        floats("w2", [hidden, classes], weights(hidden * classes, 0.5)), floats("b2", [classes], weights(classes, 0.1)),
        floats("epsilon", [], [1e-5]), floats("sqrt2", [], [2 ** 0.5]), floats("one", [], [1.0]), floats("half", [], [0.5]),
    ]
    nodes = [
        node("Gemm", ["x", "w1", "b1"], ["h"]),
        node("ReduceMean", ["h"], ["mean"], axes=[-1], keepdims=1),
        node("Sub", ["h", "mean"], ["centred"]),
        node("Mul", ["centred", "centred"], ["squared"]),
        node("ReduceMean", ["squared"], ["variance"], axes=[-1], keepdims=1),
        node("Add", ["variance", "epsilon"], ["biased"]),
        node("Sqrt", ["biased"], ["deviation"]),
        node("Div", ["centred", "deviation"], ["normal"]),
        node("Mul", ["normal", "scale"], ["scaled"]),
        node("Add", ["scaled", "shift"], ["n"]),
        node("Div", ["n", "sqrt2"], ["g1"]),
        node("Erf", ["g1"], ["g2"]),
        node("Add", ["g2", "one"], ["g3"]),
        node("Mul", ["n", "g3"], ["g4"]),
        node("Mul", ["g4", "half"], ["g"]),
        node("Gemm", ["g", "w2", "b2"], ["logits"]),
        node("Softmax", ["logits"], ["probability"], axis=-1),
    ]
    graph = b"".join(data(1, n) for n in nodes) + data(2, "tiny") + b"".join(data(5, i) for i in initializers)
    graph += data(11, value_info("x", ["batch", features])) + data(12, value_info("probability", ["batch", classes]))
    return integer(1, 8) + data(2, "fuseloom make_tiny_onnx.py") + data(7, graph) + data(8, data(1, "") + integer(2, 13))


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        file.write(model())
