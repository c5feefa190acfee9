#!/usr/bin/env bash
# The figures of docs/performance.md on this machine: `./dev bench cpu|aot` builds preset release, then comes here.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-cpu}" in
  cpu) ;;
  aot) shift; exec python3 scripts/bench_aot.py "$@" ;;
  *) echo "bench: there is no '${1}'; there are: cpu, aot" >&2; exit 2 ;;
esac
build=build/release
grep -m 1 "model name" /proc/cpuinfo | sed 's/.*: //'
"$build/fuseloom" doctor
echo
echo "== workloads that memory bandwidth bounds"
"$build/fuseloom" suite cpu
echo
echo "== over time: the detection model at many sizes, the speech model 33 times a second"
PYTHONPATH=scripts python3 - <<'PYTHON' | while read -r what model arguments; do
import demo
demo.MODELS.mkdir(exist_ok=True)
for what, package, member, arguments in (
    ("sizes", "rapidocr-onnxruntime", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", ""),
    ("calls", "silero-vad", "silero_vad/data/silero_vad.onnx", "input_d1=576 sr=16000")):
    model = demo.extract(package, member)
    print(*((what, model, arguments) if model else ("missing", package, "")))
PYTHON
  if [ "$what" = missing ]; then
    echo "not measured: the package $model could not be fetched"
  else
    # shellcheck disable=SC2086  # several arguments
    "$build/bench/steady_state" "$what" "$model" $arguments || echo "(beyond its limit)"
  fi
done
for program in "$build"/bench/*_bench; do
  [ -x "$program" ] || continue
  echo
  echo "== $(basename "$program")"
  "$program"
done
