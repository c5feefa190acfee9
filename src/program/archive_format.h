// Private to the archive's writer and reader: the header, and where things lie.
#pragma once
#include <bit>
#include <cstdint>

#include "program/archive.h"

namespace fuseloom::program {

static_assert(std::endian::native == std::endian::little, "an archive's tensors are little-endian and used in place");

inline constexpr char kArchiveMagic[8] = {'\x89', 'f', 'l', 'o', 'o', 'm', '\r', '\n'};  // a text-mode copy would change it

struct ArchiveHeader {
  char magic[8];
  uint32_t version;
  uint32_t zero;
  uint64_t file_bytes;
  uint64_t index_bytes;
  uint64_t index_hash[2];
  uint64_t reserved;
  uint64_t header_hash;     // of all bytes before
};
static_assert(sizeof(ArchiveHeader) == 64);

inline constexpr uint64_t padded(uint64_t bytes) { return (bytes + kArchiveAlignment - 1) / kArchiveAlignment * kArchiveAlignment; }

}  // namespace fuseloom::program
