// Loads .floom archives: maps the file, picks the target for this machine, links the kernels. Compiles, lowers and plans
// nothing, and links without the compiler.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "program/archive.h"
#include "run/executable.h"

namespace fuseloom::run {

struct ArchiveOptions {
  int32_t threads = 0;                 // 0: as many as there are cores
  RunOptions run;
  std::shared_ptr<ThreadPool> pool;    // shared between programs; made when absent
  std::string isa;                     // "": the highest level in the file that this machine has
  bool check_tensors = true;           // false: tensors are not hashed, and pages of the file are read only when they are used
};

// An open archive. Any number of executables may be made of it, at any time and from any thread; they share the mapped
// weights and outlive the object.
class Archive {
 public:
  // Throws UserError "<path>: <reason>".
  static Archive open(const std::string& path);
  // From memory that `owner` keeps alive (null: the caller does). Copied when it does not start at a multiple of 64.
  static Archive from_bytes(std::span<const std::byte> bytes, std::shared_ptr<void> owner = nullptr, const std::string& where = "<bytes>");

  const program::ArchiveReader& reader() const { return *reader_; }

  // The instruction set, and the program, that load() would take.
  std::string chosen_isa(const ArchiveOptions& options = {}) const;
  program::ArchiveReader::LoadedTarget target(const ArchiveOptions& options = {}, const op::OpTable& table = op::standard_ops()) const;
  // Throws UserError for a file that is damaged or has no code for this machine.
  std::shared_ptr<Executable> load(const ArchiveOptions& options = {}, const op::OpTable& table = op::standard_ops()) const;

 private:
  explicit Archive(std::shared_ptr<const program::ArchiveReader> reader) : reader_(std::move(reader)) {}
  std::shared_ptr<const program::ArchiveReader> reader_;
};

}  // namespace fuseloom::run
