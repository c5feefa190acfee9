// The constants of programs as one blob: what a compiled model or an archive carries, maps into memory, and shares.
//
//   0    "fuseloom weights"                                  16 bytes
//   16   hash of all bytes from 64 on, hexadecimal            32 bytes
//   48   size of the whole blob, little endian                 8 bytes
//   56   zero                                                  8 bytes
//   64   tensors, row-major, each at a multiple of 64; equal ones once
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "program/program.h"

namespace fuseloom::program {

class Weights {
 public:
  static constexpr int64_t kAlignment = 64, kHeaderBytes = 64;

  // Takes in the constants of a program and those nested in it that some line or output uses.
  void add(const Program& program);
  // Where a tensor that was added is. The offset depends on content and order of adding only.
  int64_t offset_of(const Tensor& tensor) const;

  bool empty() const { return pieces_.empty(); }
  int64_t bytes() const { return empty() ? 0 : end_; }
  std::vector<std::byte> blob() const;   // empty without tensors
  std::string hash() const;              // 32 hexadecimal digits

 private:
  struct Piece {
    Tensor tensor;   // contiguous
    int64_t offset = 0;
  };
  void add(const Tensor& tensor);
  std::vector<Piece> pieces_;
  std::map<std::string, int64_t> offsets_;   // by content
  int64_t end_ = kHeaderBytes;
};

}  // namespace fuseloom::program
