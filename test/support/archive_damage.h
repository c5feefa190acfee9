// Archives in memory, for tests and fuzzing: written to aligned memory, and damaged on purpose.
#pragma once
#include <archive_generated.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/hash.h"
#include "program/archive.h"
#include "program/archive_format.h"

namespace fuseloom::test {

struct AlignedBytes {
  explicit AlignedBytes(size_t size)
      : owner(std::aligned_alloc(program::kArchiveAlignment, program::padded(size + 1)), std::free), bytes(static_cast<std::byte*>(owner.get()), size) {}
  explicit AlignedBytes(std::span<const std::byte> from) : AlignedBytes(from.size()) {
    if (!from.empty()) std::memcpy(bytes.data(), from.data(), from.size());
  }
  std::shared_ptr<void> owner;
  std::span<std::byte> bytes;
};

inline AlignedBytes written(const program::ArchiveContents& contents) {
  std::vector<std::byte> all;
  program::write_archive(contents, [&](std::span<const std::byte> part) { all.insert(all.end(), part.begin(), part.end()); });
  return AlignedBytes(all);
}

// Makes all hashes right after bytes have changed, so that what lies behind them is reached.
inline void reseal(std::span<std::byte> bytes) {
  namespace wire = program::wire;
  program::ArchiveHeader header;
  if (bytes.size() < sizeof header) return;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::memcpy(header.magic, program::kArchiveMagic, sizeof header.magic);
  header.version = program::kArchiveVersion;
  header.zero = 0;
  header.reserved = 0;
  header.file_bytes = bytes.size();
  header.index_bytes = std::min<uint64_t>(header.index_bytes, bytes.size() - sizeof header);
  const std::span<std::byte> text = bytes.subspan(sizeof header, header.index_bytes);
  const uint64_t sections = sizeof header + program::padded(text.size());
  const auto seal = [&](const wire::Section* section) {
    if (section == nullptr || section->offset() > bytes.size() - sections || section->size() > bytes.size() - sections - section->offset()) return;
    const base::Hash128 hash = base::hash_bytes(bytes.data() + sections + section->offset(), section->size());
    *const_cast<wire::Section*>(section) = wire::Section(section->offset(), section->size(), wire::Hash(hash.low, hash.high));
  };
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  if (sections <= bytes.size() && text.size() > 0 && wire::VerifyIndexBuffer(verifier)) {
    const wire::Index* const index = wire::GetIndex(text.data());
    if (index->targets() != nullptr) {
      for (const wire::Target* target : *index->targets()) {
        seal(target->program());
        if (target->modules() == nullptr) continue;
        for (const wire::Module* module : *target->modules()) seal(module->data());
      }
    }
    if (index->tensors() != nullptr) {
      for (const wire::Tensor* tensor : *index->tensors()) seal(tensor->data());
    }
    if (index->documents() != nullptr) {
      for (const wire::Document* document : *index->documents()) seal(document->data());
    }
  }
  const base::Hash128 hash = base::hash_bytes(text.data(), text.size());
  header.index_hash[0] = hash.low;
  header.index_hash[1] = hash.high;
  header.header_hash = base::hash_bytes(&header, offsetof(program::ArchiveHeader, header_hash)).low;
  std::memcpy(bytes.data(), &header, sizeof header);
}

}  // namespace fuseloom::test
