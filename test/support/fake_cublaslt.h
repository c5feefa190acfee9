// What the fake libcublasLt (fake_cublaslt.cpp) was asked for.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fuseloom::test {

struct FakeMatrix {
  int type = -1;
  uint64_t rows = 0, columns = 0;        // column by column, as the library counts
  int64_t leading_dimension = 0, batch_stride = 0;
  int batch = 1;
};
struct FakeProduct {
  int compute_type = 0, scale_type = 0, transpose_a = 0, transpose_b = 0;
  unsigned epilogue = 1;
  const void* bias = nullptr;
  FakeMatrix a, b, c, d;
  const void* workspace = nullptr;
  size_t workspace_bytes = 0;
  int heuristics = 0, checks = 0;        // asked for until then
};

// Exported by the library, by these names.
using FakeReset = void (*)(int refuse, size_t workspace_bytes);   // refuse: the heuristic finds nothing
using FakeCount = int (*)();
using FakeCall = const FakeProduct* (*)(int index);

}  // namespace fuseloom::test
