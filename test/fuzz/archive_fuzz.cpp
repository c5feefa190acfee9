// Any bytes as an archive: a UserError, or a program that verifies and can be written again. The hashes are made right first:
// they keep accidents out, and the reader has to stand what they do not.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "../support/archive_damage.h"
#include "fuseloom/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fuseloom;
  const test::AlignedBytes file(std::as_bytes(std::span(data, size)));
  test::reseal(file.bytes);
  try {
    const program::ArchiveReader reader(file.bytes, file.owner, "<fuzz>");
    for (const std::string& name : reader.documents()) {
      try {
        reader.document(name);
      } catch (const UserError&) {
      }
    }
    for (size_t t = 0; t < reader.targets().size(); ++t) {
      const program::ArchiveReader::LoadedTarget target = reader.target(t, op::standard_ops());
      const std::string text = program::to_string(target.program);
      program::ArchiveContents contents;
      contents.targets.push_back({.program = program::clone(target.program)});
      const test::AlignedBytes again = test::written(contents);
      if (program::to_string(program::ArchiveReader(again.bytes, again.owner, "<again>").target(0, op::standard_ops()).program) != text) std::abort();
    }
  } catch (const UserError&) {
  }
  return 0;
}
