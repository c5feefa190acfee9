#!/usr/bin/env python3
"""examples/library as its readers have it: a folder of its own, the compiler of models, two headers. Built with GCC and Clang without a
warning; what its programs print is what the interpreter computes, bit by bit.

    python3 library_test.py PATH_OF_FUSELOOM"""
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

FUSELOOM = sys.argv.pop(1)
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WARNINGS = "-Wall -Wextra -Wpedantic -Werror"


class Example(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        shutil.copytree(ROOT / "examples" / "library", self.path / "project")
        shutil.copy(ROOT / "examples" / "tiny.onnx", self.path)
        (self.path / "include" / "fuseloom").mkdir(parents=True)
        for header in ("abi.h", "model.hpp"):
            shutil.copy(ROOT / "include" / "fuseloom" / header, self.path / "include" / "fuseloom")
        self.rows = self.path / "project" / "rows.txt"

    def call(self, *command, code=0):
        environment = dict(os.environ, FUSELOOM_CACHE_DIR=str(self.path / "cache"))
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.assertEqual(done.returncode, code, f"{command}\n{done.stdout}{done.stderr}")
        return done

    # What `fuseloom run` gives for the same rows, printed as the programs do.
    def expected(self):
        rows = [[float(word) for word in line.split()] for line in self.rows.read_text().splitlines()]
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(rows)}, 16), }}"
        header += " " * (-(len(header) + 11) % 64) + "\n"
        data = b"".join(struct.pack("<16f", *row) for row in rows)
        (self.path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data)
        self.call(FUSELOOM, "run", self.path / "tiny.onnx", "--input", f"x={self.path / 'x.npy'}", "--output", self.path / "out")
        count = len(rows) * 4
        flat = struct.unpack(f"<{count}f", (self.path / "out" / "probability.npy").read_bytes()[-4 * count:])
        lines = [flat[at:at + 4] for at in range(0, count, 4)]
        return "".join(f"{line.index(max(line))}: {' '.join(f'{value:.9g}' for value in line)}\n" for line in lines)

    def build_and_run(self, c, cpp):
        build = self.path / f"build-{c}"
        self.call("cmake", "-S", self.path / "project", "-B", build, f"-DFUSELOOM={FUSELOOM}", f"-DFUSELOOM_INCLUDE={self.path / 'include'}", f"-DCMAKE_C_COMPILER={c}",
                  f"-DCMAKE_CXX_COMPILER={cpp}", f"-DCMAKE_C_FLAGS={WARNINGS}", f"-DCMAKE_CXX_FLAGS={WARNINGS}")
        said = self.call("cmake", "--build", build)
        self.assertNotIn("warning:", said.stdout + said.stderr)
        self.assertNotIn("note:", said.stdout + said.stderr)
        expected = self.expected()
        self.assertEqual(expected.count("\n"), 5)
        self.assertEqual(self.call(build / "classify_c", build / "tiny.so", self.rows).stdout, expected)
        self.assertEqual(self.call(build / "classify_cpp", build / "tiny.so", self.rows).stdout, expected)
        self.assertEqual(self.call(build / "classify_linked", self.rows).stdout, expected)
        # What is wrong is said by name.
        for program in ("classify_c", "classify_cpp"):
            self.assertIn("nothing.so", self.call(build / program, "./nothing.so", self.rows, code=1).stderr)
            (self.path / "cut.txt").write_text("1 2 3\n")
            self.assertIn("rows of 16 numbers", self.call(build / program, build / "tiny.so", self.path / "cut.txt", code=1).stderr)
            weights = build / "tiny.weights"
            weights.rename(build / "away")
            self.assertIn("tiny.weights: No such file", self.call(build / program, build / "tiny.so", self.rows, code=1).stderr)
            (build / "away").rename(weights)

    def test_gcc(self):
        self.build_and_run("gcc", "g++")

    def test_clang(self):
        if shutil.which("clang++") is None:
            self.skipTest("no clang++ here")
        self.build_and_run("clang", "clang++")

    # Without CMake: the command at the head of classify.c.
    def test_one_command(self):
        head = (self.path / "project" / "classify.c").read_text().split("*/")[0]
        command = next(line.strip(" *") for line in head.splitlines() if "cc -std=c99" in line)
        shutil.copytree(self.path / "project", self.path / "examples" / "library")
        self.call("sh", "-c", f"cd {self.path} && {command} {WARNINGS}")
        self.call(FUSELOOM, "compile", self.path / "tiny.onnx", "-o", self.path / "tiny.so", "--weights", "file")
        self.assertEqual(self.call(self.path / "classify_c", self.path / "tiny.so", self.rows).stdout, self.expected())


if __name__ == "__main__":
    unittest.main()
