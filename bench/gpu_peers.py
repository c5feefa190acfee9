#!/usr/bin/env python3
"""The workloads of `fuseloom suite gpu` in PyTorch: eager, Inductor with static and with dynamic shapes.

The rules are the suite's: device time between two events, queued behind a write to a block larger than the L2; the bytes of
a workload are its inputs once and its outputs once, vectors left out; the median of 20 calls. One line per workload and
type; all of it as JSON lines in the file given by --json.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

ROWS, COLUMNS = 16384, 8192


def gelu_bias(x, b):
    return F.gelu(x + b, approximate="tanh")


def silu_mul(x, y):
    return F.silu(x) * y


def pointwise_chain(x, y):
    return torch.tanh(x * y + 0.5) * torch.sigmoid(x) - y


def softmax(x):
    return torch.softmax(x, -1)


def layernorm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rmsnorm(x, w):
    f = x.float()
    return (f * torch.rsqrt((f * f).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def add_rmsnorm(x, r, w):
    h = x + r
    return h, rmsnorm(h, w)


def row_sum(x):
    return x.float().sum(-1)


def col_sum(x):
    return x.float().sum(0)


def full_sum(x):
    return x.float().sum()


def transpose_add(x, y):
    return (x.t() + y).contiguous()


def softmax_bwd(g, y):
    gf, yf = g.float(), y.float()
    return (yf * (gf - (gf * yf).sum(-1, keepdim=True))).to(g.dtype)


def layernorm_bwd(g, x, w, mean, rstd):
    gf, xh = g.float(), (x.float() - mean) * rstd
    gw = gf * w.float()
    c1, c2 = (xh * gw).mean(-1, keepdim=True), gw.mean(-1, keepdim=True)
    return ((gw - (xh * c1 + c2)) * rstd).to(g.dtype), (gf * xh).sum(0).to(g.dtype), gf.sum(0).to(g.dtype)


def cross_entropy(x, index):
    return F.cross_entropy(x.float(), index, reduction="none")


def batchnorm_train(x, w, b):
    f = x.float()
    mean, var = f.mean((0, 2, 3), keepdim=True), f.var((0, 2, 3), unbiased=False, keepdim=True)
    return ((f - mean) * torch.rsqrt(var + 1e-5) * w.view(1, -1, 1, 1) + b.view(1, -1, 1, 1)).to(x.dtype)


def groupnorm(x, w, b):
    return F.group_norm(x, 32, w, b)


def rope(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def matmul_bias_gelu(x, w, b):
    return F.gelu(x @ w + b, approximate="tanh")


def cases(dtype):
    """Name, function, inputs, elements moved."""
    def t(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)

    def f(*shape):
        return torch.randn(*shape, device="cuda")

    m, n = ROWS, COLUMNS
    yield "gelu_bias", gelu_bias, lambda: (t(m, n), t(n)), 2 * m * n
    yield "silu_mul", silu_mul, lambda: (t(m, n), t(m, n)), 3 * m * n
    yield "pointwise_chain", pointwise_chain, lambda: (t(m, n), t(m, n)), 3 * m * n
    for name, rows, columns in (("softmax", m, n), ("softmax_32k", m // 4, 32768), ("softmax_128k", 1024, 131072), ("softmax_257", 524288, 257)):
        yield name, softmax, lambda rows=rows, columns=columns: (t(rows, columns),), 2 * rows * columns
    yield "layernorm", layernorm, lambda: (t(m, n), t(n), t(n)), 2 * m * n
    yield "rmsnorm", rmsnorm, lambda: (t(m, n), t(n)), 2 * m * n
    yield "add_rmsnorm", add_rmsnorm, lambda: (t(m, n), t(m, n), t(n)), 4 * m * n
    yield "row_sum", row_sum, lambda: (t(m, n),), m * n
    yield "col_sum", col_sum, lambda: (t(m, n),), m * n
    yield "full_sum", full_sum, lambda: (t(m, n),), m * n
    yield "transpose_add", transpose_add, lambda: (t(n, m), t(m, n)), 3 * m * n
    yield "softmax_bwd", softmax_bwd, lambda: (t(m, n), t(m, n)), 3 * m * n
    yield "layernorm_bwd", layernorm_bwd, lambda: (t(m, n), t(m, n), t(n), f(m, 1), f(m, 1)), 3 * m * n
    yield "cross_entropy", cross_entropy, lambda: (t(4096, 50257), torch.randint(0, 50257, (4096,), device="cuda")), 4096 * 50257
    yield "batchnorm_train", batchnorm_train, lambda: (t(128, 256, 56, 56), f(256), f(256)), 2 * 128 * 256 * 56 * 56
    yield "groupnorm", groupnorm, lambda: (t(64, 320, 64, 64), t(320), t(320)), 2 * 64 * 320 * 64 * 64
    yield "rope", rope, lambda: (t(8, 32, 4096, 128), t(4096, 128), t(4096, 128)), 2 * 8 * 32 * 4096 * 128
    # Bound by arithmetic: 2 * 4096 * 4096 * 16384 operations.
    yield "matmul_bias_gelu", matmul_bias_gelu, lambda: (t(4096, 4096), t(4096, 16384), t(16384)), 4096 * 4096 + 2 * 4096 * 16384


def odd_cases(dtype):
    def t(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)

    for more in (1, 2, 8):
        n = COLUMNS + more
        yield f"gelu_bias+{more}", gelu_bias, lambda n=n: (t(ROWS, n), t(n)), 2 * ROWS * n
        yield f"softmax+{more}", softmax, lambda n=n: (t(ROWS, n),), 2 * ROWS * n
        yield f"layernorm+{more}", layernorm, lambda n=n: (t(ROWS, n), t(n), t(n)), 2 * ROWS * n
        yield f"row_sum+{more}", row_sum, lambda n=n: (t(ROWS, n),), ROWS * n


class Stopwatch:
    def __init__(self):
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self.flushed = torch.empty(max(4 * l2, 256 << 20), dtype=torch.uint8, device="cuda")

    def seconds(self, function, inputs, calls=20):
        for _ in range(3):
            function(*inputs)
        samples = []
        for _ in range(calls):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(1_000_000)  # PyTorch's host needs longer than the write takes the device
            self.flushed.zero_()
            begin.record()
            function(*inputs)
            end.record()
            torch.cuda.synchronize()
            samples.append(begin.elapsed_time(end) * 1e-3)
        return statistics.median(samples)


def host_seconds(function, inputs):
    samples = []
    for _ in range(15):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            function(*inputs)
        samples.append((time.perf_counter() - start) / 200)
    torch.cuda.synchronize()
    return statistics.median(samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="gpu_peers.jsonl")
    parser.add_argument("--filter", default="")
    parser.add_argument("--seconds", type=float, default=480, help="stop starting new workloads after this long")
    parser.add_argument("--odd", action="store_true", help="also rows of 8192 + 1, 2 and 8 elements")
    parser.add_argument("--peers", default="eager,static,dynamic")
    arguments = parser.parse_args()
    until = time.time() + arguments.seconds
    torch.manual_seed(0)
    watch = Stopwatch()
    x = torch.empty(1 << 30, device="cuda").normal_()
    y = torch.empty_like(x)
    copy = 2 * 4 * x.numel() / watch.seconds(lambda a: y.copy_(a), (x,), 10)
    del x, y
    torch.cuda.empty_cache()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: copy {copy / 1e9:.0f} GB/s (read plus written)\n")
    with open(arguments.json, "w") as out:
        for dtype in (torch.bfloat16, torch.float32):
            size = torch.empty(0, dtype=dtype).element_size()
            listed = list(cases(dtype)) + (list(odd_cases(dtype)) if arguments.odd else [])
            for name, function, make, elements in listed:
                if arguments.filter not in name:
                    continue
                if time.time() > until:
                    print("out of time")
                    return
                inputs = make()
                row = {"case": name, "dtype": str(dtype)[6:], "copy_gbs": copy / 1e9}
                for peer in arguments.peers.split(","):
                    torch._dynamo.reset()
                    call = function if peer == "eager" else torch.compile(function, fullgraph=True, dynamic=peer == "dynamic")
                    start = time.time()
                    call(*inputs)
                    torch.cuda.synchronize()
                    row[peer + "_first_s"] = time.time() - start
                    seconds = watch.seconds(call, inputs)
                    row[peer + "_ms"] = seconds * 1e3
                    row[peer + "_pct"] = 100 * elements * size / seconds / copy
                print(f"{row['dtype']:9} {name:24} " + "  ".join(f"{peer} {row[peer + '_pct']:6.1f}% ({row[peer + '_first_s']:.1f} s)" for peer in arguments.peers.split(",")),
                      flush=True)
                out.write(json.dumps(row) + "\n")
                del inputs
                torch.cuda.empty_cache()
        a, b = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
        product = torch.compile(lambda x, y: x * y, fullgraph=True)
        row = {"case": "host_us_64x64", "eager_us": host_seconds(lambda x, y: x * y, (a, b)) * 1e6, "static_us": host_seconds(product, (a, b)) * 1e6}
        print(f"host time of a call, 64x64: eager {row['eager_us']:.1f} us, Inductor {row['static_us']:.1f} us")
        out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
