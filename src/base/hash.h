// Content hashing (xxHash3, 128 bits): cache keys, constants, kernel names. The same bytes give the same hash everywhere.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fuseloom::base {

struct Hash128 {
  uint64_t low = 0, high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
  friend auto operator<=>(const Hash128&, const Hash128&) = default;
  // 32 lower-case hexadecimal digits.
  std::string hex() const;
};

Hash128 hash_bytes(const void* data, size_t size, uint64_t seed = 0);
inline Hash128 hash_text(std::string_view text) { return hash_bytes(text.data(), text.size()); }
// Order-dependent combination of two 64-bit hashes.
uint64_t hash_combine(uint64_t a, uint64_t b);

}  // namespace fuseloom::base
