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
for program in "$build"/bench/*_bench; do
  [ -x "$program" ] || continue
  echo
  echo "== $(basename "$program")"
  "$program"
done
