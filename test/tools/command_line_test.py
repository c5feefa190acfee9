#!/usr/bin/env python3
"""The command line as scripts see it: exit codes, the keys of --json, files in and out.

    python3 command_line_test.py PATH_OF_FUSELOOM"""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

FUSELOOM = sys.argv.pop(1)
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TINY = str(ROOT / "examples" / "tiny.onnx")
GRAPH = "graph main(%x: f32[n, 4], %i: i64[2]) {\n  %y: f32[n, 4] = relu(%x)\n  %z: i64[2] = neg(%i)\n  return %y, %z\n}\n"


def npy(path, descr, dims, raw):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({''.join(f'{d},' for d in dims)}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + raw)
    return str(path)


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        self.graph = self.path / "model.fl"
        self.graph.write_text(GRAPH)

    def call(self, *arguments, code=0):
        environment = dict(os.environ, FUSELOOM_CACHE_DIR=str(self.path / "cache"))
        done = subprocess.run([FUSELOOM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def json(self, *arguments, code=0):
        return json.loads(self.call(*arguments, "--json", code=code).stdout)

    def test_run(self):
        result = self.json("run", TINY, "--dim", "batch=3")
        self.assertEqual(result["outputs"], [{"name": "probability", "dtype": "f32", "shape": [3, 4]}])
        self.assertIn("probability: f32[3,4]", self.call("run", TINY, "--dim", "batch=3").stdout)

    def test_files(self):
        x = npy(self.path / "x.npy", "<f4", [2, 4], struct.pack("<8f", -1, 2, -3, 4, 5, -6, 7, -8))
        # A TensorProto: dims = [2], data_type = INT64, raw_data.
        raw = struct.pack("<2q", 5, -7)
        (self.path / "i.pb").write_bytes(b"\x08\x02\x10\x07\x4a" + bytes([len(raw)]) + raw)
        result = self.json("run", self.graph, "--input", f"x={x}", "--input", f"i={self.path}/i.pb", "--output", self.path / "out")
        data = pathlib.Path(result["outputs"][0]["file"]).read_bytes()
        self.assertEqual(struct.unpack("<8f", data[-32:]), (0, 2, 0, 4, 5, 0, 7, 0))
        self.assertEqual(struct.unpack("<2q", (self.path / "out" / "z.npy").read_bytes()[-16:]), (-5, 7))

    def test_fixed_sizes(self):
        for model, name, text in ((TINY, "batch", "f32[3, 16]"), (self.graph, "n", "f32[3, 4]")):
            self.assertIn(text, self.json("inspect", model, "--stage", "graph", "--fix", f"{name}=3")["text"])
            self.assertEqual(self.json("run", model, "--fix", f"{name}=3")["outputs"][0]["shape"][0], 3)

    def test_the_same_seed_gives_the_same_input(self):
        outputs = []
        for seed in (1, 1, 2):
            self.call("run", TINY, "--seed", seed, "--output", self.path / "out")
            outputs.append((self.path / "out" / "probability.npy").read_bytes())
        self.assertEqual(outputs[0], outputs[1])
        self.assertNotEqual(outputs[0], outputs[2])

    def test_archive(self):
        archive = self.path / "tiny.floom"
        made = self.json("compile", TINY, "-o", archive, "--isa", "native", "--dim", "batch=3")
        self.assertEqual(made["bytes"], archive.stat().st_size)
        self.assertEqual(len(made["targets"]), 1)
        # Nothing is compiled: there is no compiler.
        environment = dict(os.environ, FUSELOOM_CACHE_DIR="", FUSELOOM_CXX="none", PATH="/nowhere")
        outputs = []
        for arguments in (("run", TINY), ("run", archive)):
            folder = self.path / arguments[0]
            done = subprocess.run([FUSELOOM, *map(str, arguments), "--dim", "batch=3", "--output", str(folder), "--json"], stdout=subprocess.PIPE, text=True,
                                  env=environment if arguments[1] is archive else dict(os.environ, FUSELOOM_CACHE_DIR=str(self.path / "cache")))
            self.assertEqual(done.returncode, 0)
            outputs.append(pathlib.Path(json.loads(done.stdout)["outputs"][0]["file"]).read_bytes())
        self.assertEqual(outputs[0], outputs[1])
        self.assertTrue(self.json("verify", archive, "--dim", "batch=3")["ok"])
        self.assertGreater(self.json("bench", archive, "--dim", "batch=3", "--repeat", 3)["kernel_count"], 0)
        for stage, text in (("graph", "graph "), ("program", "launch "), ("kernels", "kernel "), ("source", "extern"), ("groups", "group")):
            self.assertIn(text, self.json("inspect", archive, "--stage", stage)["text"])
        self.call("inspect", archive, "--stage", "memory", "--dim", "batch=3")

        self.call("compile", TINY, "-o", archive, "--strip", "--raw-weights")
        self.assertEqual(self.json("run", archive, "--isa", "baseline", "--dim", "batch=2")["outputs"][0]["shape"], [2, 4])
        self.assertIn("--strip", self.json("verify", archive, "--dim", "batch=2", code=2)["error"])
        self.assertIn("compiled already", self.json("compile", archive, "-o", self.path / "again.floom", code=2)["error"])
        self.assertIn("--fix", self.json("run", archive, "--fix", "batch=2", code=2)["error"])
        archive.write_bytes(archive.read_bytes()[:-100])
        self.assertIn("cut short", self.json("run", archive, code=2)["error"])

    def test_verify(self):
        for options in ((), ("--no-fuse",), ("--poison",), ("--isa", "baseline")):
            result = self.json("verify", TINY, "--dim", "batch=5", *options)
            self.assertTrue(result["ok"], result)
            self.assertIsNone(result["first_difference"])
            self.assertGreater(result["values_compared"], 0)
            for key in ("max_abs", "max_rel", "kernels"):
                self.assertIn(key, result)

    def test_bench(self):
        result = self.json("bench", TINY, "--repeat", "5")
        for key in ("min_ms", "p50_ms", "p99_ms", "first_ms", "compile_ms", "load_ms", "peak_bytes", "lower_bound_bytes"):
            self.assertGreaterEqual(result[key], 0, key)
        self.assertEqual(result["calls"], 5)
        self.assertEqual(set(result["kernels"][0]), {"name", "origin", "ms", "bytes", "gbs", "share"})
        self.assertLess(result["kernel_count"], result["nodes"])
        again = self.json("bench", TINY, "--repeat", "1")
        self.assertTrue(again["from_cache"])

    def test_inspect(self):
        for stage, words in {"graph": "graph ", "groups": "group", "kernels": "kernel ", "source": "void", "program": "program "}.items():
            self.assertIn(words, self.json("inspect", TINY, "--stage", stage)["text"])
        memory = self.json("inspect", TINY, "--stage", "memory", "--dim", "batch=2", "--html", self.path / "memory.html")
        self.assertGreaterEqual(memory["arena_bytes"], memory["lower_bound_bytes"])
        self.assertIn("<svg", (self.path / "memory.html").read_text())
        self.call("inspect", TINY, "--stage", "cellar", code=2)

    def test_memory_goes_to_plan(self):
        (self.path / "memory.csv").write_text(self.call("inspect", TINY, "--stage", "memory", "--dim", "batch=2").stdout)
        self.json("plan", self.path / "memory.csv")

    def test_plan(self):
        (self.path / "b.csv").write_text("id,lower,upper,size\na,0,3,4\nb,2,9,4\nc,4,9,4\n")
        result = self.json("plan", self.path / "b.csv", "--output", self.path / "p.csv")
        self.assertEqual((result["lower_bound"], result["height"], result["ratio"], result["proof"]), (8, 8, 1, "optimal"))
        self.assertIn("seconds", result)
        self.assertIn("offset", (self.path / "p.csv").read_text())
        self.call("plan", self.path / "b.csv", "--capacity", "7", code=1)

    def test_suite(self):
        result = self.json("suite", "cpu", "--filter", "row_sum", "--mebibytes", "1", "--seconds", "0.01")
        self.assertGreater(result["copy_gbs"], 0)
        self.assertEqual([(c["case"], c["dtype"]) for c in result["cases"]], [("row_sum", "f32"), ("row_sum", "bf16")])
        for key in ("shape", "ms", "bytes", "gbs", "pct_of_copy", "compile_ms"):
            self.assertIn(key, result["cases"][0])

    def test_suite_of_a_device(self):
        # The same code as on a device, at small sizes; without the device's library a kernel does the product, and why is told.
        result = self.json("suite", "cuda-host", "--filter", "matmul", "--tf32")
        self.assertEqual([(c["case"], c["dtype"]) for c in result["cases"]], [("matmul_bias_gelu", "bf16"), ("matmul_bias_gelu", "f32")])
        for case in result["cases"]:
            self.assertTrue(case["right"], case)
            self.assertEqual((case["library_calls"], case["library_best_ms"]), (0, None))
            self.assertIn("host", case["library_missing"])
            for key in ("shape", "ms", "bytes", "gbs", "pct_of_copy", "compile_ms", "tflops"):
                self.assertIn(key, case)
        self.call("suite", "nonsense", code=2)

    def test_bench_counts_what_a_library_does(self):
        result = self.json("bench", TINY, "--device", "cuda-host", "--no-library", "--tf32", "--repeat", "1", "--dim", "batch=2")
        self.assertEqual(result["library_calls"], 0)
        self.assertFalse(any(kernel["library"] for kernel in result["kernels"]))

    def test_onnx_test(self):
        # x = zeros: every row of the result is the same, so the expected values come from a run of the oracle's choice.
        folder = self.path / "tests" / "test_tiny"
        (folder / "test_data_set_0").mkdir(parents=True)
        (folder / "model.onnx").write_bytes(pathlib.Path(TINY).read_bytes())
        x = struct.pack("<32f", *([0.0] * 32))
        npy(self.path / "x.npy", "<f4", [2, 16], x)
        self.call("run", TINY, "--input", f"x={self.path}/x.npy", "--output", self.path / "out")
        y = (self.path / "out" / "probability.npy").read_bytes()[-32:]
        for name, dims, raw in (("input_0", (2, 16), x), ("output_0", (2, 4), y)):
            length = bytes([len(raw)]) if len(raw) < 128 else bytes([len(raw) & 127 | 128, len(raw) >> 7])
            body = bytes([8, dims[0], 8, dims[1], 16, 1, 0x4A]) + length + raw
            (folder / "test_data_set_0" / f"{name}.pb").write_bytes(body)
        for executor in ("compiled", "oracle"):
            result = self.json("onnx-test", self.path / "tests", "--executor", executor)
            self.assertEqual([result[k] for k in ("passed", "failed", "unsupported", "crashed")], [1, 0, 0, 0], result)
            self.assertEqual(result["tests"], [{"name": "test_tiny", "status": "passed", "reason": ""}])

    def test_doctor(self):
        result = self.json("doctor")
        self.assertTrue(result["ok"])
        self.assertEqual(list(result["libraries"]), ["libcuda", "NVRTC", "cuBLASLt"])
        for library in result["libraries"].values():
            self.assertTrue(library["description"])
        words = self.call("doctor").stdout
        for name in ("libcuda", "NVRTC", "cuBLASLt"):
            self.assertIn(name, words)

    def test_errors(self):
        self.assertIn("usage", self.call("--help").stdout.lower())
        self.call(code=2)
        self.call("run", code=2)
        self.call("run", TINY, "--nonsense", code=2)
        self.call("run", self.path / "missing.onnx", code=2)
        self.call("run", TINY, "--dim", "colour=3", code=2)
        self.call("run", TINY, "--input", "y=random", code=2)
        self.call("run", TINY, "--device", "cuda", code=3)
        wrong = npy(self.path / "x.npy", "<f4", [2, 5], struct.pack("<10f", *range(10)))
        message = self.json("run", TINY, "--input", f"x={wrong}", code=2)["error"]
        self.assertTrue(re.search(r"\bx\b", message) and "16" in message and "5" in message, message)
        (self.path / "bad.onnx").write_bytes(b"\xff" * 100)
        self.call("run", self.path / "bad.onnx", code=2)


if __name__ == "__main__":
    unittest.main()
