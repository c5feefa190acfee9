#!/usr/bin/env python3
"""Checks every #include against layers.txt: a module sees only the modules named on its line; public headers see only
the standard library and each other. Exits 1 and names file, line and rule for each fault."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUOTED = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
ANGLED = re.compile(r'^\s*#\s*include\s+<([^>]+)>')


def read_layers(text):
    layers = {}
    for line in text.splitlines():
        match = re.match(r"^([a-z]+):(.*)$", line)
        if match:
            lower = match.group(2).split()
            for name in lower:
                if name not in layers:
                    raise SystemExit(f"layers.txt: {match.group(1)} names {name}, which is not above it in the file")
            layers[match.group(1)] = set(lower)
    return layers


def faults_in(module, name, text, layers):
    """The faults of one file of a module ("" for a public header)."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        quoted, angled = QUOTED.match(line), ANGLED.match(line)
        if module == "":
            if angled and "/" in angled.group(1):
                found.append(f"{name}:{number}: a public header includes <{angled.group(1)}>; it may see only the standard library")
            if quoted and not quoted.group(1).startswith("fuseloom/"):
                found.append(f"{name}:{number}: a public header includes {quoted.group(1)}; it may see only public headers")
            continue
        if not quoted or quoted.group(1).startswith("fuseloom/"):
            continue
        target = quoted.group(1).split("/")[0]
        if target not in layers:
            found.append(f"{name}:{number}: {quoted.group(1)} belongs to no module of layers.txt")
        elif target != module and target not in layers[module]:
            found.append(f"{name}:{number}: {module} includes {target}, which layers.txt does not allow")
    return found


def self_test(layers):
    planted = faults_in("base", "planted", '#include "graph/graph.h"\n', layers)
    planted += faults_in("", "planted", '#include <fmt/format.h>\n', layers)
    if len(planted) != 2:
        raise SystemExit("check_layers.py does not see a planted fault")


def main():
    layers = read_layers((ROOT / "layers.txt").read_text())
    self_test(layers)
    faults = []
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix in (".h", ".cpp"):
            name = path.relative_to(ROOT).as_posix()
            module = name.split("/")[1]
            if module not in layers:
                faults.append(f"{name}: module {module} is not in layers.txt")
                continue
            faults += faults_in(module, name, path.read_text(), layers)
    for path in sorted((ROOT / "include").rglob("*.h")):
        faults += faults_in("", path.relative_to(ROOT).as_posix(), path.read_text(), layers)
    print("\n".join(faults) if faults else f"check_layers: {len(layers)} floors, no include runs upwards")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
