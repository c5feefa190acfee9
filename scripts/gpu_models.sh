#!/usr/bin/env bash
# Whole models on a CUDA device: scripts/gpu_models.sh [FOLDER...]
# For every model in the folders: error against the oracle, latency, first call, compile time, memory (bench/gpu_models.py).
# Where PyTorch is installed and PEERS is not 0: exports models of bench/gpu_model_peers.py to OUT/models, measures Inductor on
# them, with and without CUDA graphs, and then fuseloom on what was exported.
# FUSELOOM names the program, for a machine that does not build; OUT is the folder for what is written.
set -uo pipefail
cd "$(dirname "$0")/.."
export FUSELOOM=${FUSELOOM:-build/release/fuseloom}
OUT=${OUT:-build}
failed=0
if [ $# -gt 0 ]; then
  python3 bench/gpu_models.py --json "$OUT/gpu_models.jsonl" "$@" || failed=1
fi
if [ "${PEERS:-1}" != 0 ] && python3 -c 'import torch, onnx' 2>/dev/null; then
  python3 bench/gpu_model_peers.py --export "$OUT/models" --json "$OUT/gpu_model_peers.jsonl" --seconds "${PEER_SECONDS:-400}"
  python3 bench/gpu_models.py --json "$OUT/gpu_exported.jsonl" "$OUT/models" || failed=1
fi
exit "$failed"
