#!/usr/bin/env python3
"""The figures of "Ahead of time, archive, planner" in docs/performance.md: ./dev bench aot [--models DIR] [--plans DIR]

--models DIR: *.onnx of silero-vad, magika, PP-OCR direction (and detection, for the shapes); --plans DIR: CSV files of the planner.
What is not there is not measured, and the table says so.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = {"silero-vad": ("silero", ["input_d0=1", "input_d1=512", "state_d1=1"]), "magika": ("magika", []), "PP-OCR direction": ("cls", [])}
rows = []


def row(what, figure, goal, met=None):
    rows.append((what, figure, goal, "" if met is None else "yes" if met else "**no**"))
    print(f"  {what}: {figure} (goal {goal}){'' if met is None else ' met' if met else ' NOT MET'}", flush=True)


def run(*command, **keywords):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **keywords)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def last_json(text):
    return json.loads(text.strip().splitlines()[-1])


def find_model(folder, part):
    found = sorted(path for path in folder.glob("*.onnx") if part in path.name) if folder else []
    return found[0] if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / ".models")
    parser.add_argument("--plans", type=pathlib.Path)
    parser.add_argument("--cycles", type=int, default=10000)
    arguments = parser.parse_args()
    fuseloom = ROOT / "build/release/fuseloom"
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        bench = work / "abi_bench"
        run("g++", "-std=c++17", "-O2", "-I", ROOT / "include", ROOT / "bench/aot/abi_bench.cpp", "-o", bench, "-pthread", "-ldl")

        # 1. Libraries: size, dependencies, from the start of the process to the first answer.
        libraries = {}
        for label, (part, dims) in MODELS.items():
            model = find_model(arguments.models, part)
            if model is None:
                print(f"  {label}: no model in {arguments.models}, not measured")
                continue
            library = work / f"{part}.so"
            built = last_json(run(fuseloom, "compile", model, "-o", library, "--weights", "file", "--json"))
            weights = pathlib.Path(built["weights_file"]) if built["weights_file"] else "-"
            libraries[label] = (library, weights, dims)
            size = library.stat().st_size
            row(f"`.so` of {label} without weights", f"{size / 1e6:.2f} MB", "1 MB", size <= 1_000_000)
            needed = [line.split("[")[1].rstrip("]") for line in run("readelf", "-d", library).splitlines() if "(NEEDED)" in line]
            row("... which needs", " ".join(needed) or "nothing", "libc, libm", set(needed) <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"})
            starts = []
            for _ in range(15):
                before = time.monotonic()
                first = last_json(run(bench, "first", library, weights, *dims))
                starts.append(((time.monotonic() - before) * 1e3, first))
            total = statistics.median(value for value, _ in starts)
            parts = ", ".join(f"{key[:-3].replace('_', ' ')} {statistics.median(each[key] for _, each in starts):.2f}" for key in ("load_ms", "create_ms", "first_run_ms", "second_run_ms"))
            row(f"process start to first answer, {label}", f"{total:.1f} ms (process and all; {parts})", *(("10 ms", total <= 10) if label == "silero-vad" else ("",)))

        # 2. What a call costs: one kernel of one element.
        for count in (1, 4):
            names = "abcd"[:count]
            graph = work / f"call{count}.fl"
            inputs = ", ".join(f"%{letter}: f32[n]" for letter in names)
            lines = ["  %s0 = neg(%a)"] + [f"  %s{i + 1} = add(%s{i}, %{letter})" for i, letter in enumerate(names[1:])]
            graph.write_text(f"graph call({inputs}) {{\n" + "\n".join(lines) + f"\n  return %s{count - 1}\n}}\n")
            library = work / f"call{count}.so"
            run(fuseloom, "compile", graph, "-o", library)
            cost = last_json(run(bench, "call", library))
            row(f"call of a one-kernel model of one element, {count} input(s)", f"{cost['call_ns']:.0f} ns, kernel included", "200 ns", cost["call_ns"] <= 200)
            if count == 4:
                row("checks of 4 inputs and plan of a known shape (`arena_bytes`)", f"{cost['checks_ns']:.0f} ns", "100 ns", cost["checks_ns"] <= 100)

        # 3. Threads on one instance; load and unload; shapes.
        if "silero-vad" in libraries:
            library, weights, dims = libraries["silero-vad"]
            figures = last_json(run(bench, "threads", library, weights, *dims))
            for key in ("cores_threads", "many_threads"):
                each = figures[key]
                row(f"{each['threads']} threads on one instance, silero-vad, {figures['cores']} cores",
                    f"{each['of_linear_cpu']:.2f} of linear by CPU time, {each['of_linear']:.2f} by wall time with {each['running'] * 100:.0f} % of the cores to itself; "
                    f"{each['waits_per_call']:.5f} waits a call; same bits {figures['same_bits']}", "0.9", each["of_linear_cpu"] >= 0.9)
            figures = last_json(run(bench, "load", library, weights, arguments.cycles, *dims))
            grown = figures["resident_kib_at_end"] - figures["resident_kib_at_a_tenth"]
            row(f"{figures['cycles']} times load, run, unload, silero-vad", f"{figures['resident_kib_at_a_tenth']} KiB after a tenth, {figures['resident_kib_at_end']} KiB at the end", "flat", grown <= 64)
        detection = find_model(arguments.models, "det")
        if detection is not None:
            library = work / "det.so"
            built = last_json(run(fuseloom, "compile", detection, "-o", library, "--weights", "file", "--isa", "native", "--json"))
            figures = last_json(run(bench, "shapes", library, built["weights_file"], 64, 480, 32))
            grown = figures["most_resident_kib"] - figures["resident_kib_after_largest"]
            row("60 random sizes (64 .. 480), PP-OCR detection", f"{figures['resident_kib_after_largest']} KiB after the largest, {figures['most_resident_kib']} KiB at most", "flat", grown <= 256)

        # 4. Archives.
        for label, (part, dims) in MODELS.items():
            model = find_model(arguments.models, part)
            if model is None:
                continue
            archive = work / f"{part}.floom"
            built = last_json(run(fuseloom, "compile", model, "-o", archive, "--isa", "native", "--json", *[word for dim in dims for word in ("--dim", dim)]))
            loads = [last_json(run(ROOT / "build/release/bench/archive_load", archive)) for _ in range(9)]
            load_ms = statistics.median(each["load_ms"] for each in loads)
            over = statistics.median(each["grown_kib"] for each in loads) / 1024 - built["tensor_bytes"] / 2**20
            row(f"archive of {label}: load", f"{load_ms:.2f} ms", "5 ms", load_ms <= 5)
            row(f"... resident memory over the weights", f"{max(over, 0):.1f} MiB", "10 MB", over <= 9.5)

        # 5. The planner.
        if arguments.plans is not None:
            seconds = 0
            solved = 0
            challenging = sorted(arguments.plans.glob("[A-I].1048576.csv"))
            for path in challenging:
                before = time.monotonic()
                plan = last_json(run(fuseloom, "plan", path, "--capacity", 1048576, "--json"))
                seconds += time.monotonic() - before
                solved += plan["height"] <= 1048576
            row("planner: A .. I within 1048576", f"{solved} of {len(challenging)}, {seconds:.1f} s together", "all, 20 s", solved == len(challenging) and seconds < 20)
            for name, goal, limit in (("resnet50", 1.0, 1), ("pangu_2.6B", 1.01, 10)):
                path = arguments.plans / f"{name}.csv"
                before = time.monotonic()
                plan = last_json(run(fuseloom, "plan", path, "--json"))
                seconds = time.monotonic() - before
                ratio = plan["height"] / plan["lower_bound"]
                row(f"planner: {name}", f"{ratio:.4f} x bound, {seconds:.2f} s", f"{goal} x, {limit} s", ratio <= goal and seconds < limit)

    print("\n| | measured | goal | met |\n|---|---|---|---|")
    for each in rows:
        print("| " + " | ".join(each) + " |")


main()
