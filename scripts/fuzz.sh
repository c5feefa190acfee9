#!/usr/bin/env bash
# Runs every libFuzzer target for some seconds: `./dev fuzz [SECONDS]`. Corpora are kept under build/fuzz/corpus; an input
# that fails is left there, and its name is printed.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-30}
cmake --preset fuzz >/dev/null
mapfile -t targets < <(cd test/fuzz && ls ./*_fuzz.cpp | sed 's|.*/||; s|\.cpp$||')
cmake --build build/fuzz -j "$(nproc)" --target "${targets[@]}" archive_seed
failed=0
for target in "${targets[@]}"; do
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  case "$target" in   # something valid to start from
    onnx_fuzz) cp examples/tiny.onnx "$corpus/" ;;
    graph_text_fuzz) cp test/golden/graph/*.fl "$corpus/" ;;
    archive_fuzz) build/fuzz/test/fuzz/archive_seed "$corpus" test/golden/program/*.fl ;;
    kernel_text_fuzz) cp test/golden/kernel/*.fl "$corpus/" ;;
  esac
  echo "== $target, $seconds s"
  "build/fuzz/test/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="$corpus/failed-" "$corpus" 2>&1 | grep -E "stat::number_of_executed|ERROR|SUMMARY|Test unit written" || true
  if compgen -G "$corpus/failed-*" >/dev/null; then
    echo "FAILED: $(ls "$corpus"/failed-*)" >&2
    failed=1
  fi
done
exit $failed
