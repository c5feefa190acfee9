// The .floom archive: a compiled program as one file that is mapped and run in place (docs/archive.md).
//
// A file is a header of 64 bytes, an index (FlatBuffers, archive.fbs), and sections: host programs (FlatBuffers too),
// machine code, tensors, texts. Everything starts at a multiple of 64 bytes and has a content hash; what lies between
// sections is checked to be zero, so that no bit of the file is free.
//
// This is the format only. run/archive.h loads a file, compile/archive.h makes one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"

namespace fuseloom::program {

// Files of another version are refused. What older readers may ignore does not change it: see archive.fbs.
inline constexpr uint32_t kArchiveVersion = 1;
inline constexpr int64_t kArchiveAlignment = 64;

// ---- what goes in ----------------------------------------------------------------------------------------------------

enum class ModuleFormat : uint8_t {
  SharedObject,  // an ELF library that exports the kernels
  Cubin,         // for exactly one CUDA architecture
  Ptx,           // for it and later ones
};

struct ArchiveModule {
  ModuleFormat format = ModuleFormat::SharedObject;
  std::string architecture;           // "x86-64", "aarch64"; "sm_90"
  std::string isa;                    // "baseline", "avx2", "avx512"; "" for CUDA
  std::vector<std::byte> bytes;
};

// A program and its kernels, for one instruction set or for a family of CUDA architectures.
struct ArchiveTarget {
  Program program;
  std::vector<ArchiveModule> modules;
  std::vector<std::vector<Dims>> entries;  // sizes of all inputs of calls that are made ready when it is loaded
};

struct ArchiveDocument {
  std::string name, text;
};

struct ArchiveContents {
  std::string writer;                 // "fuseloom 0.1.0"
  std::vector<ArchiveTarget> targets;
  std::vector<ArchiveDocument> documents;
  op::ConstantPool pool;              // tensors that the documents name by hash
};

// Hands the file to `sink`, front to back. Tensors of equal content are written once. Equal contents give equal bytes.
using ByteSink = std::function<void(std::span<const std::byte>)>;
void write_archive(const ArchiveContents& contents, const ByteSink& sink);

// ---- what comes out --------------------------------------------------------------------------------------------------

// Reads what it is asked for and checks it first: bounds, hashes, the structure of the tables, every invariant of a program.
// A file that is cut, damaged or of another version throws UserError "<where>: <reason>"; nothing in a file, not even one
// made on purpose, makes the reader itself crash. (Machine code is another matter: load files from whom you trust.)
class ArchiveReader {
 public:
  // The bytes start at a multiple of 64 and are kept alive by `owner`, which the tensors of programs share. Checks the header
  // and the index.
  ArchiveReader(std::span<const std::byte> bytes, std::shared_ptr<void> owner, std::string where);
  ~ArchiveReader();
  ArchiveReader(ArchiveReader&&) noexcept;

  struct ModuleInfo {
    ModuleFormat format;
    std::string architecture, isa;
    int64_t bytes = 0;
  };
  struct TargetInfo {
    Device device;
    std::vector<ModuleInfo> modules;
  };
  const std::string& where() const;
  std::string writer() const;
  const std::vector<TargetInfo>& targets() const;
  std::vector<std::string> documents() const;
  int64_t tensor_bytes() const;        // of all tensors

  struct LoadedTarget {
    Program program;                   // its constants are views of the file
    std::vector<std::vector<Dims>> entries;
  };
  // Without check_tensors, the tensors' hashes are not compared: nothing of them is read before it is used.
  LoadedTarget target(size_t index, const op::OpTable& table, bool check_tensors = true) const;
  std::span<const std::byte> module(size_t target, size_t module) const;
  std::optional<std::string> document(std::string_view name) const;
  op::ConstantPool pool() const;       // every tensor, by the hash that the documents name it by
  void check_everything() const;       // every byte of the file

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fuseloom::program
