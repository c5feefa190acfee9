#!/usr/bin/env python3
"""Memory of compiled models next to ONNX Runtime's, same inputs, one thread, one process each: the table in docs/performance.md.

    python3 scripts/bench_memory.py MODEL... [--size NAME.INPUT.DIMENSION=N]     needs onnx and onnxruntime

MODEL: an .onnx file, whose free sizes are those given (else 1), or a folder in the layout of ONNX's backend tests, each of whose
data sets is measured. Columns: the planned height over the most that is alive at once; what the process of a library (.so, weights
in a file that is mapped) had resident at its peak, and by how much that is above the same process before it loaded the library;
the same of ONNX Runtime, before being behind its import.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BYTES_OF = {1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64"}


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def status_kib(key):
    for line in open("/proc/self/status"):
        if line.startswith(key + ":"):
            return int(line.split()[1])
    return 0


# In a process of its own: what ONNX Runtime has resident.
def peer(model, listing):
    import numpy
    import onnxruntime
    feeds = {}
    for line in open(listing):
        name, path, dtype, *sizes = line.split()
        feeds[name] = numpy.fromfile(path, dtype=dtype).reshape([int(size) for size in sizes])
    before = status_kib("VmRSS")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for _ in range(3):
        session.run(None, feeds)
    print(json.dumps({"before_kib": before, "most_resident_kib": status_kib("VmHWM")}))


def cases_of(path, given):
    import numpy
    import onnx
    import onnx.numpy_helper
    model_path = path / "model.onnx" if path.is_dir() else path
    model = onnx.load(model_path)
    known = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in known]
    sets = sorted(path.glob("test_data_set_*")) if path.is_dir() else []
    for folder in sets:
        arrays = {}
        for i, value in enumerate(inputs):
            tensor = onnx.TensorProto()
            tensor.ParseFromString((folder / f"input_{i}.pb").read_bytes())
            arrays[value.name] = onnx.numpy_helper.to_array(tensor)
        yield model_path, arrays
    if not sets:
        random = numpy.random.default_rng(20261207)
        arrays = {}
        for value in inputs:
            dtype = BYTES_OF[value.type.tensor_type.elem_type]
            sizes = [given.get(f"{value.name}.{d}", dim.dim_value if dim.dim_value > 0 else 1) for d, dim in enumerate(value.type.tensor_type.shape.dim)]
            if dtype.startswith("float"):
                arrays[value.name] = random.random(sizes, dtype="float32").astype(dtype)
            else:
                arrays[value.name] = numpy.full(sizes, 16000) if not sizes else random.integers(0, 200, sizes).astype(dtype)
        yield model_path, arrays


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--size", action="append", default=[], help="of models without data: PART_OF_FILE_NAME.INPUT.DIMENSION=N")
    parser.add_argument("--fuseloom", type=pathlib.Path, default=ROOT / "build/release/fuseloom")
    arguments = parser.parse_args()
    print("| model | sizes of the inputs | height / max-live | MB planned | library: peak, above start (MB) | ONNX Runtime: peak, above import (MB) | less |\n|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        bench = work / "abi_bench"
        subprocess.run(["g++", "-std=c++17", "-O2", "-I", ROOT / "include", ROOT / "bench/aot/abi_bench.cpp", "-o", bench, "-pthread", "-ldl"], check=True)
        for path in arguments.models:
            label = path.name if path.is_dir() else path.stem
            given = {key.split(".", 1)[1]: int(size) for key, size in (each.split("=") for each in arguments.size) if key.split(".", 1)[0] in label}
            library = work / f"{label}.so"
            built = None
            for model, arrays in cases_of(path, given):
                sizes = ", ".join("x".join(map(str, array.shape)) or "scalar" for array in arrays.values())
                try:
                    if built is None:
                        built = run(arguments.fuseloom, "compile", model, "-o", library, "--weights", "file", "--isa", "native", "--json")
                    ours, theirs, flags = work / "inputs", work / "peer_inputs", []
                    with open(ours, "w") as listing, open(theirs, "w") as peers:
                        for i, (each, array) in enumerate(arrays.items()):
                            array.tofile(work / f"{i}.bin")
                            dims = " ".join(map(str, array.shape))
                            listing.write(f"{each} {work / f'{i}.bin'} {dims}\n")
                            peers.write(f"{each} {work / f'{i}.bin'} {array.dtype} {dims}\n")
                            import numpy
                            numpy.save(work / f"{i}.npy", array)
                            flags += ["--input", f"{each}={work / f'{i}.npy'}"]
                    plan = run(arguments.fuseloom, "bench", model, *flags, "--repeat", 1, "--json")
                    own = run(bench, "memory", library, built["weights_file"] or "-", ours)
                    peer_figures = run(sys.executable, __file__, "--peer", model, theirs)
                except RuntimeError as error:
                    print(f"| {label} | {sizes} | not measured: {str(error).strip().splitlines()[-1]} |", flush=True)
                    continue
                height, live = plan["peak_bytes"], plan["lower_bound_bytes"]
                ratio = "depends on data" if height is None else "1.0000" if live == 0 else f"{height / live:.4f}"
                rise, peer_rise = (each["most_resident_kib"] - each["before_kib"] for each in (own, peer_figures))
                print(f"| {label} | {sizes} | {ratio} | {own['arena_bytes'] / 1e6:.2f} | {own['most_resident_kib'] * 1.024e-3:.1f}, {rise * 1.024e-3:.1f} | "
                      f"{peer_figures['most_resident_kib'] * 1.024e-3:.1f}, {peer_rise * 1.024e-3:.1f} | {'yes' if rise <= peer_rise else '**no**'} |", flush=True)


if len(sys.argv) == 4 and sys.argv[1] == "--peer":
    peer(sys.argv[2], sys.argv[3])
else:
    main()
