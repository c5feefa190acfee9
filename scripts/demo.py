#!/usr/bin/env python3
"""The demo: fetches real models, gives them real input, runs them with `fuseloom`, and checks the answers.

For each model: kernels before and after fusion, compile time cold and warm, latency, memory for temporaries and its
lower bound, the greatest error against the oracle, and what the model says. Exits 1 when a result differs from the
oracle or an answer is not the expected one. Standard library only."""
import array
import hashlib
import json
import math
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ROOT / ".models"
FUSELOOM = ROOT / "build" / "release" / "fuseloom"

# ---- tensors as .npy files ------------------------------------------------------------------------------------------
CODES = {"<f4": "f", "<i4": "i", "<i8": "q"}


def write_npy(path, descr, dims, values):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({''.join(f'{d},' for d in dims)}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + array.array(CODES[descr], values).tobytes())
    return path


def read_npy(path):
    """(dims, values) of a row-major file of floats or integers."""
    raw = path.read_bytes()
    length = struct.unpack("<H", raw[8:10])[0]
    header = raw[10:10 + length].decode()
    descr = re.search(r"'descr': '([^']+)'", header).group(1)
    dims = [int(d) for d in re.findall(r"\d+", re.search(r"\(([^)]*)\)", header).group(1))]
    values = array.array(CODES[descr])
    values.frombytes(raw[10 + length:])
    return dims, values


# ---- fetching -------------------------------------------------------------------------------------------------------
def packages():
    for line in (ROOT / "scripts" / "demo_packages.txt").read_text().splitlines():
        match = re.match(r"(\S+)==(\S+) --hash=sha256:(\w+)$", line)
        if match:
            yield match.groups()


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wheel(name, version, digest):
    """The package's wheel in .models/, downloaded unless it is there; None when it cannot be had."""
    stem = f"{name.replace('-', '_')}-{version}-"
    for path in MODELS.glob(stem + "*.whl"):
        if sha256(path) == digest:
            return path
        path.unlink()
    print(f"fetching {name} {version} ...", file=sys.stderr)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirement:
        requirement.write(f"{name}=={version} --hash=sha256:{digest}\n")
        requirement.flush()
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:",
                               "--disable-pip-version-check", "-r", requirement.name, "-d", str(MODELS)], stdout=subprocess.DEVNULL)
    found = list(MODELS.glob(stem + "*.whl"))
    return found[0] if done.returncode == 0 and found else None


def extract(package, member):
    """A file of a package's wheel, in .models/."""
    target = MODELS / package / pathlib.PurePosixPath(member).name
    if not target.exists():
        details = next(p for p in packages() if p[0] == package)
        archive = wheel(*details)
        if archive is None:
            return None
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(archive) as names, names.open(member) as source:
            target.write_bytes(source.read())
    return target


# ---- fuseloom -------------------------------------------------------------------------------------------------------
def fuseloom(verb, model, inputs, *options):
    """The JSON that `fuseloom VERB --json` prints, and its exit code."""
    command = [str(FUSELOOM), verb, str(model), "--json", *options]
    for name, path in inputs.items():
        command += ["--input", f"{name}={path}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    try:
        return json.loads(done.stdout), done.returncode
    except json.JSONDecodeError:
        return {"error": f"exit code {done.returncode}: {' '.join(command)}"}, done.returncode or 4


failures = []


def check(condition, words):
    if not condition:
        failures.append(words)
        print(f"  WRONG: {words}")


def report(title, model, inputs, work):
    """Compiles, measures and verifies; True when the model ran."""
    print(f"\n{title}  ({model.name})")
    cache = work / f"cache-{model.stem}"
    cold, code = fuseloom("bench", model, inputs, "--cache-dir", str(cache), "--repeat", "1")
    if code != 0:
        check(False, f"{title}: {cold.get('error', code)}")
        return False
    warm, _ = fuseloom("bench", model, inputs, "--cache-dir", str(cache), "--seconds", "2")
    verified, code = fuseloom("verify", model, inputs, "--cache-dir", str(cache))
    print(f"  kernels        {cold['nodes']} before fusion, {cold['kernel_count']} after ({cold['distinct_kernels']} distinct)")
    print(f"  compile        {cold['compile_ms']:.0f} ms cold, {warm['compile_ms']:.1f} ms warm (plus {warm['import_ms']:.1f} ms to read the model)")
    print(f"  latency        {warm['min_ms']:.3f} ms least, {warm['p50_ms']:.3f} ms median of {warm['calls']} calls, {warm['first_ms']:.3f} ms the first")
    if warm["peak_bytes"] is not None:
        print(f"  memory         {warm['peak_bytes']} bytes of temporaries at the peak, lower bound {warm['lower_bound_bytes']}; {warm['constant_bytes']} bytes of weights")
    if code in (0, 1):
        print(f"  error          {verified['max_abs']:.2e} absolute, {verified['max_rel']:.2e} relative, over {verified['values_compared']} stored values and all outputs")
    check(code == 0, f"{title}: {verified.get('first_wrong_output') or verified.get('error')}")
    return True


# ---- voice activity ---------------------------------------------------------------------------------------------------
RATE = 16000


def spoken(seconds):
    """A signal with the traits of speech: a gliding pitch, three formants that move from vowel to vowel, syllables, breath."""
    noise = random.Random(7)
    vowels = [(730, 1090, 2440), (270, 2290, 3010), (570, 840, 2410), (530, 1840, 2480), (300, 870, 2240)]
    out, phase = [], 0.0
    state = [[0.0, 0.0] for _ in range(3)]
    for i in range(int(seconds * RATE)):
        t = i / RATE
        syllable = t * 4.2
        at, part = int(syllable), syllable % 1
        pitch = 118 + 22 * math.sin(2 * math.pi * 0.9 * t) - 9 * part + noise.gauss(0, 0.4)
        phase += pitch / RATE
        pulse = 0.0
        if phase >= 1:   # the glottis closes
            phase -= 1
            pulse = 1.0
        value = pulse + noise.gauss(0, 0.012)
        here, there = vowels[at % 5], vowels[(at + 1) % 5]
        blend = max(0.0, (part - 0.6) / 0.4)
        total = 0.0
        for k, width in enumerate((70, 100, 140)):   # three resonators side by side
            frequency = here[k] * (1 - blend) + there[k] * blend
            radius = math.exp(-math.pi * width / RATE)
            y = value + 2 * radius * math.cos(2 * math.pi * frequency / RATE) * state[k][0] - radius * radius * state[k][1]
            state[k] = [y, state[k][0]]
            total += y * (1.0, 0.6, 0.3)[k]
        loudness = math.sin(math.pi * min(1.0, part / 0.85)) ** 0.7 if part < 0.85 else 0.03
        out.append(0.05 * loudness * total)
    return out


def voice_activity(work):
    model = extract("silero-vad", "silero_vad/data/silero_vad.onnx")
    if model is None:
        return False
    rate = write_npy(work / "rate.npy", "<i8", [], [RATE])
    zero = write_npy(work / "state0.npy", "<f4", [2, 1, 128], [0.0] * 256)
    speech = spoken(0.6)
    hiss = random.Random(3)
    silence = [hiss.gauss(0, 0.001) for _ in range(len(speech))]
    frame = write_npy(work / "frame.npy", "<f4", [1, 576], speech[4096:4672])
    if not report("voice activity", model, {"input": frame, "state": zero, "sr": rate}, work):
        return True
    answers = {}
    for name, signal in (("speech", speech), ("silence", silence)):
        state, best, context = zero, 0.0, [0.0] * 64
        for start in range(0, len(signal) - 511, 512):   # a frame is 64 samples of the last one and 512 new ones
            samples = context + signal[start:start + 512]
            context = samples[-64:]
            frame = write_npy(work / "frame.npy", "<f4", [1, 576], samples)
            result, code = fuseloom("run", model, {"input": frame, "state": state, "sr": rate}, "--output", str(work / "vad"),
                                    "--cache-dir", str(work / f"cache-{model.stem}"))
            if code != 0:
                check(False, f"voice activity: {result.get('error')}")
                return True
            files = {entry["name"]: pathlib.Path(entry["file"]) for entry in result["outputs"]}
            state = pathlib.Path(shutil.copy(files["stateN"], work / "state.npy"))
            best = max(best, read_npy(files["output"])[1][0])
        answers[name] = best
    print(f"  answer         speech probability {answers['speech']:.3f} in a spoken-like signal, {answers['silence']:.3f} in faint noise")
    check(answers["speech"] > 0.5 > answers["silence"], "voice activity: the spoken-like signal is not told from noise")
    return True


# ---- text on a page ---------------------------------------------------------------------------------------------------
# A font of 5 x 7 pixels; each number is a column, bit 0 is the top.
FONT = {
    "A": (126, 17, 17, 17, 126), "B": (127, 73, 73, 73, 54), "C": (62, 65, 65, 65, 34), "D": (127, 65, 65, 34, 28), "E": (127, 73, 73, 73, 65),
    "F": (127, 9, 9, 9, 1), "G": (62, 65, 73, 73, 122), "H": (127, 8, 8, 8, 127), "I": (0, 65, 127, 65, 0), "K": (127, 8, 20, 34, 65),
    "L": (127, 64, 64, 64, 64), "M": (127, 2, 12, 2, 127), "N": (127, 4, 8, 16, 127), "O": (62, 65, 65, 65, 62), "P": (127, 9, 9, 9, 6),
    "R": (127, 9, 25, 41, 70), "S": (70, 73, 73, 73, 49), "T": (1, 1, 127, 1, 1), "U": (63, 64, 64, 64, 63), "V": (31, 32, 64, 32, 31),
    "W": (63, 64, 56, 64, 63), "X": (99, 20, 8, 20, 99), "Y": (7, 8, 112, 8, 7), " ": (0, 0, 0, 0, 0),
}


def draw(rows, text, x, y, scale):
    """Black letters into rows of grey values."""
    for letter in text:
        for column, bits in enumerate(FONT[letter]):
            for line in range(7):
                if bits >> line & 1:
                    for dy in range(scale):
                        for dx in range(scale):
                            rows[y + line * scale + dy][x + column * scale + dx] = 0
        x += 6 * scale


def image(path, rows):
    """Grey rows as [1, 3, height, width], normalised to [-1, 1] as both models want it."""
    plane = [value / 127.5 - 1 for row in rows for value in row]
    return write_npy(path, "<f4", [1, 3, len(rows), len(rows[0])], plane * 3)


def components(mask, width, height):
    """Bounding boxes of the connected parts of a mask, with their size."""
    seen, found = bytearray(len(mask)), []
    for start in range(len(mask)):
        if not mask[start] or seen[start]:
            continue
        seen[start] = 1
        stack, size = [start], 0
        box = [width, height, 0, 0]
        while stack:
            at = stack.pop()
            size += 1
            x, y = at % width, at // width
            box = [min(box[0], x), min(box[1], y), max(box[2], x), max(box[3], y)]
            for near, inside in ((at - 1, x > 0), (at + 1, x + 1 < width), (at - width, y > 0), (at + width, y + 1 < height)):
                if inside and mask[near] and not seen[near]:
                    seen[near] = 1
                    stack.append(near)
        found.append((box, size))
    return found


LINES = [("GRAPH IN", 32, 40), ("KERNELS OUT", 32, 112), ("PLANNED MEMORY", 32, 184), ("EXACT TESTS", 32, 256)]


def text_detection(work):
    model = extract("rapidocr-onnxruntime", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx")
    if model is None:
        return False
    width, height = 320, 320
    rows = [[255] * width for _ in range(height)]
    for text, x, y in LINES:
        draw(rows, text, x, y, 3)
    page = image(work / "page.npy", rows)
    if not report("text detection", model, {"x": page}, work):
        return True
    result, code = fuseloom("run", model, {"x": page}, "--output", str(work / "det"), "--cache-dir", str(work / f"cache-{model.stem}"))
    if code != 0:
        check(False, f"text detection: {result.get('error')}")
        return True
    dims, values = read_npy(pathlib.Path(result["outputs"][0]["file"]))
    mask = bytes(value > 0.3 for value in values)
    boxes = [box for box, size in components(mask, dims[3], dims[2]) if size >= 40]
    hit = [any(box[0] < x + 60 and box[2] > x and box[1] < y + 21 and box[3] > y for box in boxes) for _, x, y in LINES]
    print(f"  answer         {len(boxes)} text boxes on a page of {len(LINES)} lines: {', '.join(f'({b[0]},{b[1]})-({b[2]},{b[3]})' for b in boxes)}")
    check(all(hit), "text detection: a line of the page was not found")
    return True


def text_direction(work):
    model = extract("rapidocr-onnxruntime", "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx")
    if model is None:
        return False
    upright = [[255] * 192 for _ in range(48)]
    draw(upright, "REGISTER", 0, 10, 4)
    turned = [row[::-1] for row in upright[::-1]]
    files = {name: image(work / f"{name}.npy", rows) for name, rows in (("upright", upright), ("turned", turned))}
    if not report("text direction", model, {"x": files["upright"]}, work):
        return True
    answers = {}
    for name, path in files.items():
        result, code = fuseloom("run", model, {"x": path}, "--output", str(work / "cls"), "--cache-dir", str(work / f"cache-{model.stem}"))
        if code != 0:
            check(False, f"text direction: {result.get('error')}")
            return True
        answers[name] = list(read_npy(pathlib.Path(result["outputs"][0]["file"]))[1])
    words = {name: f"{'0' if p[0] > p[1] else '180'} degrees ({max(p):.3f})" for name, p in answers.items()}
    print(f"  answer         upright: {words['upright']}; turned: {words['turned']}")
    check(answers["upright"][0] > 0.5 and answers["turned"][1] > 0.5, "text direction: wrong")
    return True


# ---- file types -------------------------------------------------------------------------------------------------------
FILES = {"README.md": "markdown", "scripts/demo.py": "python", "src/front/fuseloom.cpp": "cpp", "CMakeLists.txt": "cmake",
         "CMakePresets.json": "json", "dev": "shell"}


def file_types(work):
    model = extract("magika", "magika/models/standard_v3_3/model.onnx")
    config = extract("magika", "magika/models/standard_v3_3/config.min.json")
    if model is None or config is None:
        return False
    config = json.loads(config.read_text())
    begin, end, block, padding = (config[key] for key in ("beg_size", "end_size", "block_size", "padding_token"))
    tokens = []
    for name in FILES:   # the first and the last bytes without the blanks around them, padded
        content = (ROOT / name).read_bytes()
        head, tail = list(content[:block].lstrip()[:begin]), list(content[-block:].rstrip()[-end:])
        tokens += head + [padding] * (begin - len(head)) + [padding] * (end - len(tail)) + tail
    batch = write_npy(work / "bytes.npy", "<i4", [len(FILES), begin + end], tokens)
    if not report("file types", model, {"bytes": batch}, work):
        return True
    result, code = fuseloom("run", model, {"bytes": batch}, "--output", str(work / "magika"), "--cache-dir", str(work / f"cache-{model.stem}"))
    if code != 0:
        check(False, f"file types: {result.get('error')}")
        return True
    dims, values = read_npy(pathlib.Path(result["outputs"][0]["file"]))
    answers = {}
    for i, name in enumerate(FILES):
        scores = values[i * dims[1]:(i + 1) * dims[1]]
        best = max(range(dims[1]), key=scores.__getitem__)
        answers[name] = (config["target_labels_space"][best], scores[best])
    print("  answer         " + ", ".join(f"{name}: {label} ({score:.2f})" for name, (label, score) in answers.items()))
    for name, expected in FILES.items():
        check(answers[name][0] == expected, f"file types: {name} is called {answers[name][0]}")
    return True


def tiny(work):
    report("tiny classifier", ROOT / "examples" / "tiny.onnx", {}, work)
    return True


def main():
    MODELS.mkdir(exist_ok=True)
    demos = {"tiny": tiny, "vad": voice_activity, "det": text_detection, "cls": text_direction, "magika": file_types}
    chosen = sys.argv[1:] or list(demos)
    missing = []
    with tempfile.TemporaryDirectory(prefix="fuseloom-demo-") as folder:
        for name in chosen:
            if name not in demos:
                raise SystemExit(f"demo: there is no '{name}'; there are {', '.join(demos)}")
            if not demos[name](pathlib.Path(folder)):
                missing.append(name)
    if missing:
        print(f"\nnot run, as their package could not be fetched: {', '.join(missing)}")
    print(f"\n{len(chosen) - len(missing)} models run, {len(failures)} wrong")
    return 1 if failures or len(missing) == len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
