#!/usr/bin/env bash
# What runs on a CUDA device: every graph under test/gpu/ for several sizes against the oracle, with memory poisoned and with
# CUDA graphs; then the workloads of `fuseloom suite gpu`, and those of PyTorch where it is installed.
# FUSELOOM names the program, for a machine that does not build.
set -uo pipefail
cd "$(dirname "$0")/.."
FUSELOOM=${FUSELOOM:-build/release/fuseloom}
OUT=${OUT:-build}
passed=0 failed=0
check() {
  local log
  if log=$("$@" 2>&1); then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'FAILED: %s\n%s\n' "$*" "$log" >&2
  fi
}

"$FUSELOOM" doctor || exit 1
for graph in test/gpu/*.fl; do
  for sizes in "r=1 c=1" "r=3 c=8" "r=5 c=1032" "r=33 c=257" "r=64 c=4096" "r=7 c=40001"; do
    read -r rows columns <<<"$sizes"
    check "$FUSELOOM" verify "$graph" --device cuda --dim "$rows" --dim "$columns"
  done
  check "$FUSELOOM" verify "$graph" --device cuda --poison --dim r=17 --dim c=1000
  check "$FUSELOOM" bench "$graph" --device cuda --graphs --seconds 0.1 --dim r=17 --dim c=1000
done
echo "$passed passed, $failed failed"

"$FUSELOOM" suite gpu | tee "$OUT/gpu_suite.txt" || failed=$((failed + 1))
if python3 -c 'import torch' 2>/dev/null; then
  python3 bench/gpu_peers.py --odd --seconds "${PEER_SECONDS:-480}" --json "$OUT/gpu_peers.jsonl" | tee "$OUT/gpu_peers.txt"
fi
[ "$failed" -eq 0 ]
