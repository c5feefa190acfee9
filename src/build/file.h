// Files as bytes, and a private directory that goes away.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fuseloom::build {

using Bytes = std::vector<std::byte>;

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

// The whole file; nothing when it is missing, is not a regular file, or cannot be read. errno says why.
std::optional<Bytes> read_file(const std::string& path);
// Writes all bytes to a descriptor. False with errno set when the medium does not take them all.
bool write_all(int file, std::span<const std::byte> bytes);
// Creates or replaces the file. Throws UserError naming the path and the reason.
void write_file(const std::string& path, std::span<const std::byte> bytes);

// The same in one step: `fill` writes to a new file of the same folder, which then takes the name. Whoever opens or has mapped
// the path sees the old file or the new one, whole; after an exception of `fill` the old one. `fill` gets a function that
// appends bytes.
using AppendBytes = std::function<void(std::span<const std::byte>)>;
void replace_file(const std::string& path, const std::function<void(const AppendBytes&)>& fill);

// A regular file, mapped read-only at a page boundary; unmapped with its last owner. It must not be written to or cut while it
// is mapped: replace it instead. Throws UserError.
struct MappedFile {
  std::shared_ptr<void> owner;  // null for an empty file
  std::span<const std::byte> bytes;
};
MappedFile map_file(const std::string& path);

// mkdtemp under $TMPDIR (else /tmp): readable by this user only, removed with everything in it unless kept.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  void keep() { keep_ = true; }

 private:
  std::string path_;
  bool keep_ = false;
};

}  // namespace fuseloom::build
