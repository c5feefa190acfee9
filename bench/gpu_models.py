#!/usr/bin/env python3
"""Runs `fuseloom verify` and `fuseloom bench` on every model in some folders, on a CUDA device.

A model is NAME.onnx or NAME/model.onnx. A file NAME.args (or NAME/args) beside it has the options of the measured calls in
its first line ("--dim batch=8 --dim seq=128"), and in its second line those of the comparison with the oracle, which is slow;
without a second line the first serves both, without a file KNOWN_SIZES or a size of 1 for everything.
"""
import argparse
import atexit
import json
import os
import shlex
import struct
import subprocess
import sys
import tempfile

# Of public models by the name of their file.
KNOWN_SIZES = {
    "silero_vad": "--dim input_d0=1 --dim input_d1=512 --dim state_d1=1 --input sr=16000",
    "PP-OCRv4_det": "--dim p2o.DynamicDimension.0=1 --dim p2o.DynamicDimension.1=640 --dim p2o.DynamicDimension.2=640",
    "mobile_v2.0_cls": "--dim p2o.DynamicDimension.0=1 --dim p2o.DynamicDimension.1=48 --dim p2o.DynamicDimension.2=192",
    "magika": "--dim unk__214=1",
}
# Of models whose dimensions have these names (what `fuseloom` says it took as 1 is given such a size).
USUAL_SIZES = {"batch": 2, "seq": 32, "tgt": 8, "h": 3, "w": 4, "in0_0": 2, "in0_1": 24, "in0_2": 96, "in0_3": 96}


def models_in(folder):
    if folder.endswith(".onnx"):
        yield os.path.splitext(os.path.basename(folder))[0], folder, os.path.splitext(folder)[0] + ".args"
        return
    for entry in sorted(os.listdir(folder)):
        path = os.path.join(folder, entry)
        if entry.endswith(".onnx"):
            yield entry[:-5], path, path[:-5] + ".args"
        elif os.path.exists(os.path.join(path, "model.onnx")):
            yield entry, os.path.join(path, "model.onnx"), os.path.join(path, "args")


def with_numbers(options):
    """--input NAME=NUMBER: an int64 scalar, given as a file."""
    out = []
    for option in options:
        name, _, number = option.partition("=")
        if out and out[-1] == "--input" and number.isdigit():
            file = tempfile.NamedTemporaryFile(suffix=".npy", delete=False)
            header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (), }"
            header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack("<q", int(number)))
            file.close()
            atexit.register(os.unlink, file.name)
            option = f"{name}={file.name}"
        out.append(option)
    return out


def options_of(program, name, path, arguments_file):
    if os.path.exists(arguments_file):
        with open(arguments_file) as file:
            lines = [line.strip() for line in file if line.strip()]
        return shlex.split(lines[0]), shlex.split(lines[-1])
    for known, options in KNOWN_SIZES.items():
        if known in name:
            return with_numbers(options.split()), with_numbers(options.split())
    shown = subprocess.run([program, "inspect", path, "--stage", "graph"], capture_output=True, text=True).stdout
    head = next((line for line in shown.splitlines() if line.startswith("graph")), "")
    words = "".join(c if c.isalnum() or c == "_" else " " for c in head).split()
    options = [word for size in USUAL_SIZES if size in words for word in ("--dim", f"{size}={USUAL_SIZES[size]}")]
    return options, options


def call(command, timeout):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout} s"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return {"error": (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", default="1", help="how long a model is measured")
    parser.add_argument("--timeout", type=float, default=240, help="of one call of fuseloom")
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--json", help="JSON lines go to this file")
    arguments = parser.parse_args()
    program = os.environ.get("FUSELOOM", "build/release/fuseloom")
    log = open(arguments.json, "w") if arguments.json else None
    print(f"{'model':<32} {'p50 ms':>9} {'graphs':>9} {'first ms':>9} {'compile ms':>10} {'kernels':>7} {'library':>7} {'peak MB':>8} {'error':>9}")
    wrong = 0
    for folder in arguments.folders:
        for name, path, arguments_file in models_in(folder):
            measured, compared = options_of(program, name, path, arguments_file)
            bench = [program, "bench", path, "--device", arguments.device, "--json", "--seconds", arguments.seconds, *measured]
            row = {"model": name, "bench": call(bench, arguments.timeout), "graphs": call(bench + ["--graphs"], arguments.timeout)}
            if not arguments.no_verify:
                row["verify"] = call([program, "verify", path, "--device", arguments.device, "--json", *compared], arguments.timeout)
            b, g, v = row["bench"], row["graphs"], row.get("verify", {"ok": True})
            failure = next((each["error"] for each in (b, g, v) if "error" in each), None)
            if failure is None and not v["ok"]:
                failure = v.get("first_wrong_output", "differs from the oracle")
            if "error" not in b:
                error = f"{v['max_rel']:.1e}" if "max_rel" in v else "-"
                graphs = f"{g['p50_ms']:9.4f}" if "p50_ms" in g else f"{'-':>9}"
                print(f"{name:<32} {b['p50_ms']:9.4f} {graphs} {b['first_ms']:9.2f} {b['compile_ms']:10.1f} {b['kernel_count']:7} "
                      f"{b.get('library_calls', 0):7} {b.get('device_peak_bytes', 0) / 1e6:8.1f} {error:>9}")
            if failure is not None:
                wrong += 1
                print(f"{name:<32} FAILED: {failure[:300]}")
            sys.stdout.flush()
            if log:
                log.write(json.dumps(row) + "\n")
                log.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
