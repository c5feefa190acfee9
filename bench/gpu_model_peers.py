#!/usr/bin/env python3
"""Whole models in PyTorch on a CUDA device: eager and Inductor, with and without CUDA graphs, with static and dynamic shapes.

The models are public architectures with random weights in bf16, their sizes those of their papers. Each is also exported to
ONNX with dynamic sizes, as NAME.onnx with NAME.args (the sizes measured here, then small ones for the comparison with the
oracle), so that `fuseloom bench` measures the same function. The time is that of a call that waits for its end, the median of
30, as `fuseloom bench` measures it. One line per model; with --json also as JSON lines.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


# ---- models, written out: no package but torch is needed ------------------------------------------------------------------

class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads=None, causal=False, bias=True, rope=False):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads or heads, width // heads
        self.causal, self.rope = causal, rope
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, self.kv_heads * self.size, bias=bias)
        self.value = nn.Linear(width, self.kv_heads * self.size, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def rotate(self, x):
        half = self.size // 2
        position = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)
        rate = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
        angle = position[:, None] * rate[None, :]
        angle = torch.cat([angle, angle], -1)
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * angle.cos().to(x.dtype) + turned * angle.sin().to(x.dtype)

    def forward(self, x):
        batch, length, width = x.shape
        query = self.query(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        key = self.key(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        value = self.value(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        if self.rope:
            query, key = self.rotate(query), self.rotate(key)
        if self.kv_heads != self.heads:
            repeat = self.heads // self.kv_heads
            key = key[:, :, None].expand(-1, -1, repeat, -1, -1).reshape(batch, self.heads, length, self.size)
            value = value[:, :, None].expand(-1, -1, repeat, -1, -1).reshape(batch, self.heads, length, self.size)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """norm_first: normalisation before each part (GPT-2, ViT), else after it (BERT)."""

    def __init__(self, width, heads, approximate="none", causal=False, norm_first=True):
        super().__init__()
        self.attention = Attention(width, heads, causal=causal)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.approximate, self.norm_first = approximate, norm_first

    def feed(self, x):
        return self.down(F.gelu(self.up(x), approximate=self.approximate))

    def forward(self, x):
        if self.norm_first:
            x = x + self.attention(self.first(x))
            return x + self.feed(self.second(x))
        x = self.first(x + self.attention(x))
        return self.second(x + self.feed(x))


class TextModel(nn.Module):
    def __init__(self, vocabulary, positions, width=768, layers=12, heads=12, **kind):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.layers = nn.ModuleList([Layer(width, heads, **kind) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class GatedLayer(nn.Module):
    def __init__(self, width, inner, heads, kv_heads):
        super().__init__()
        self.attention = Attention(width, heads, kv_heads, causal=True, bias=False, rope=True)
        self.first, self.second = RMSNorm(width), RMSNorm(width)
        self.gate, self.up, self.down = (nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False))

    def forward(self, x):
        x = x + self.attention(self.first(x))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class GatedTextModel(nn.Module):
    def __init__(self, vocabulary=32000, width=2048, inner=5504, layers=16, heads=32, kv_heads=8):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([GatedLayer(width, inner, heads, kv_heads) for _ in range(layers)])
        self.norm, self.head = RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class ImageTransformer(nn.Module):
    def __init__(self, width=768, layers=12, heads=12, patch=16, image=224):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.mark = nn.Parameter(torch.zeros(1, 1, width))
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.mark.expand(x.shape[0], -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def convolution(inputs, outputs, size, stride=1, groups=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.reduce, self.mix, self.expand = convolution(inputs, width, 1), convolution(width, width, 3, stride), convolution(width, 4 * width, 1)
        self.skip = convolution(inputs, 4 * width, 1, stride) if stride != 1 or inputs != 4 * width else nn.Identity()

    def forward(self, x):
        y = self.expand(F.relu(self.mix(F.relu(self.reduce(x)))))
        return F.relu(y + self.skip(x))


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        blocks, inputs = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for i in range(count):
                blocks.append(Bottleneck(inputs, 64 << stage, 2 if stage > 0 and i == 0 else 1))
                inputs = 4 * (64 << stage)
        self.stem, self.blocks, self.head = convolution(3, 64, 7, 2), nn.Sequential(*blocks), nn.Linear(2048, 1000)

    def forward(self, x):
        x = self.blocks(F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1))
        return self.head(x.mean((2, 3)))


class InvertedResidual(nn.Module):
    """MobileNetV3: widen, convolve channel by channel, squeeze and excite, narrow."""

    def __init__(self, inputs, inner, outputs, size, stride, excite, hard):
        super().__init__()
        self.widen = convolution(inputs, inner, 1) if inner != inputs else nn.Identity()
        self.depth, self.narrow = convolution(inner, inner, size, stride, inner), convolution(inner, outputs, 1)
        squeezed = (inner // 4 + 7) // 8 * 8
        self.squeeze = nn.Sequential(nn.Conv2d(inner, squeezed, 1), nn.ReLU(), nn.Conv2d(squeezed, inner, 1)) if excite else None
        self.active, self.skip = F.hardswish if hard else F.relu, stride == 1 and inputs == outputs

    def forward(self, x):
        y = self.active(self.depth(self.active(self.widen(x))))
        if self.squeeze is not None:
            y = y * F.hardsigmoid(self.squeeze(y.mean((2, 3), keepdim=True)))
        y = self.narrow(y)
        return x + y if self.skip else y


class MobileNetV3(nn.Module):
    ROWS = [(16, 16, 3, 1, 0, 0), (64, 24, 3, 2, 0, 0), (72, 24, 3, 1, 0, 0), (72, 40, 5, 2, 1, 0), (120, 40, 5, 1, 1, 0), (120, 40, 5, 1, 1, 0), (240, 80, 3, 2, 0, 1),
            (200, 80, 3, 1, 0, 1), (184, 80, 3, 1, 0, 1), (184, 80, 3, 1, 0, 1), (480, 112, 3, 1, 1, 1), (672, 112, 3, 1, 1, 1), (672, 160, 5, 2, 1, 1), (960, 160, 5, 1, 1, 1),
            (960, 160, 5, 1, 1, 1)]

    def __init__(self):
        super().__init__()
        blocks, inputs = [], 16
        for inner, outputs, size, stride, excite, hard in self.ROWS:
            blocks.append(InvertedResidual(inputs, inner, outputs, size, stride, excite, hard))
            inputs = outputs
        self.stem, self.blocks, self.last = convolution(3, 16, 3, 2), nn.Sequential(*blocks), convolution(160, 960, 1)
        self.wide, self.head = nn.Linear(960, 1280), nn.Linear(1280, 1000)

    def forward(self, x):
        x = F.hardswish(self.last(self.blocks(F.hardswish(self.stem(x)))))
        return self.head(F.hardswish(self.wide(x.mean((2, 3)))))


class ChannelNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depth, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down, self.scale = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Parameter(torch.full((width,), 1e-1))

    def forward(self, x):
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, depths=(3, 3, 9, 3), widths=(96, 192, 384, 768)):
        super().__init__()
        parts, inputs = [], 3
        for depth, width in zip(depths, widths):
            parts += [nn.Conv2d(3, width, 4, 4), ChannelNorm(width)] if inputs == 3 else [ChannelNorm(inputs), nn.Conv2d(inputs, width, 2, 2)]
            parts += [ConvNeXtBlock(width) for _ in range(depth)]
            inputs = width
        self.parts, self.norm, self.head = nn.Sequential(*parts), nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], 1000)

    def forward(self, x):
        return self.head(self.norm(self.parts(x).mean((2, 3))))


# name: the model, its measured sizes, other ones, small ones, dimension names by position
def cases():
    text = {0: "batch", 1: "seq"}
    image = {0: "batch"}
    yield "bert-base_b8_s128", lambda: TextModel(30522, 512, norm_first=False), (8, 128), (5, 77), (1, 9), text
    yield "gpt2_b4_s512", lambda: TextModel(50257, 1024, approximate="tanh", causal=True), (4, 512), (3, 300), (1, 9), text
    yield "llama-1b_b1_s512", GatedTextModel, (1, 512), (1, 333), (1, 5), text
    yield "llama-1b_b1_s1", GatedTextModel, (1, 1), None, (1, 1), text
    yield "vit-b16_b16", ImageTransformer, (16, 3, 224, 224), (9, 3, 224, 224), (1, 3, 224, 224), image
    yield "resnet50_b32", ResNet50, (32, 3, 224, 224), (17, 3, 224, 224), (1, 3, 224, 224), image
    yield "mobilenetv3-large_b32", MobileNetV3, (32, 3, 224, 224), (17, 3, 224, 224), (1, 3, 224, 224), image
    yield "convnext-tiny_b16", ConvNeXt, (16, 3, 224, 224), (9, 3, 224, 224), (1, 3, 224, 224), image


def input_of(sizes, device):
    if len(sizes) == 2:
        return torch.randint(0, 30000, sizes, device=device)
    return torch.randn(*sizes, device=device, dtype=torch.bfloat16)


def milliseconds(call, calls=30):
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    samples = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples)


def export(model, sizes, small, dims, path):
    # A size of 1 would be taken as a constant.
    sample = input_of([max(size, 2) if d in dims else size for d, size in enumerate(sizes)], "cuda")
    torch.onnx.export(model, (sample,), path, input_names=["x"], output_names=["y"], opset_version=18, dynamo=True,
                      dynamic_shapes=({d: torch.export.Dim(name) for d, name in dims.items()},))
    write_arguments(path, sizes, small)


def write_arguments(path, sizes, small):
    import onnx
    shape = onnx.load(path, load_external_data=False).graph.input[0].type.tensor_type.shape.dim
    with open(os.path.splitext(path)[0] + ".args", "w") as file:
        for each in (sizes, small):
            file.write(" ".join(f"--dim {size.dim_param}={each[d]}" for d, size in enumerate(shape) if size.dim_param) + "\n")


def measure(name, make, sizes, other, small, dims, folder):
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = make().eval().to("cuda", torch.bfloat16)
    x, row = input_of(sizes, "cuda"), {"model": name}
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    if folder:
        start = time.perf_counter()
        path = os.path.join(folder, name + ".onnx")
        twin = os.path.join(folder, name.rsplit("_", 1)[0] + "_s512.onnx")  # the same model, measured with other sizes
        try:
            if twin != path and os.path.exists(twin):
                if not os.path.exists(path):
                    os.link(twin, path)  # its weights stay where its text says
                write_arguments(path, sizes, small)
            else:
                export(model, sizes, small, dims, path)
        except Exception as failure:
            row["export_failure"] = f"{type(failure).__name__}: {str(failure)[:200]}"
        row["export_s"] = time.perf_counter() - start
    row["eager_ms"] = milliseconds(lambda: model(x))
    for kind, options in (("inductor", {"dynamic": False}), ("graphs", {"dynamic": False, "mode": "reduce-overhead"}), ("dynamic", {"dynamic": True})):
        if kind == "dynamic" and other is None:
            continue
        torch._dynamo.reset()
        compiled = torch.compile(model, **options)
        start = time.perf_counter()
        compiled(x)
        torch.cuda.synchronize()
        row[kind + "_first_s"] = time.perf_counter() - start
        row[kind + "_ms"] = milliseconds(lambda: compiled(x))
        if kind == "inductor":
            torch.cuda.reset_peak_memory_stats()
            compiled(x)
            torch.cuda.synchronize()
            row["inductor_peak_mb"] = (torch.cuda.max_memory_allocated() - weights) / 1e6
        if kind == "dynamic":
            y = input_of(other, "cuda")
            start = time.perf_counter()
            compiled(y)
            torch.cuda.synchronize()
            row["new_shape_s"] = time.perf_counter() - start
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", metavar="FOLDER", help="write the models as ONNX files")
    parser.add_argument("--filter", default="")
    parser.add_argument("--seconds", type=float, default=400, help="no further model is begun after these")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.export:
        os.makedirs(arguments.export, exist_ok=True)
    log = open(arguments.json, "w") if arguments.json else None
    end = time.time() + arguments.seconds
    print(f"{'model':<24} {'eager':>8} {'inductor':>8} {'graphs':>8} {'dynamic':>8} ms, {'first':>6} {'dynamic':>7} s, {'new shape':>9} s, {'peak':>6} MB")
    with torch.no_grad():
        for name, *rest in cases():
            if arguments.filter not in name:
                continue
            if time.time() > end:
                print("out of time")
                break
            try:
                row = measure(name, *rest, arguments.export)
            except Exception as failure:
                row = {"model": name, "failure": f"{type(failure).__name__}: {str(failure)[:300]}"}
            torch.cuda.empty_cache()
            def figure(key, width, digits):
                return f"{row[key]:{width}.{digits}f}" if key in row else "-".rjust(width)
            print(f"{name:<24} {figure('eager_ms', 8, 3)} {figure('inductor_ms', 8, 3)} {figure('graphs_ms', 8, 3)} {figure('dynamic_ms', 8, 3)}     "
                  f"{figure('inductor_first_s', 6, 1)} {figure('dynamic_first_s', 7, 1)}    {figure('new_shape_s', 9, 2)}    {figure('inductor_peak_mb', 6, 0)} "
                  f"{row.get('failure', row.get('export_failure', ''))}", flush=True)
            if log:
                log.write(json.dumps(row) + "\n")
                log.flush()


if __name__ == "__main__":
    main()
