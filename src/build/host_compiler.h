// The host's C++ compiler as a child process: source text in, shared library out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "build/disk_cache.h"
#include "build/file.h"
#include "build/isa.h"
#include "fuseloom/error.h"

namespace fuseloom::build {

// A compiler refused text that fuseloom wrote. The source stays on disk for whoever looks into it.
class BuildError : public InternalError {
 public:
  BuildError(const std::string& message, std::string source_path, int line, std::string log)
      : InternalError(message), source_path_(std::move(source_path)), line_(line), log_(std::move(log)) {}
  const std::string& source_path() const { return source_path_; }
  int line() const { return line_; }               // of the first error in the source; 0 when the compiler names none
  const std::string& log() const { return log_; }  // all the compiler printed

 private:
  std::string source_path_;
  int line_;
  std::string log_;
};

enum class Optimization : uint8_t {
  Quick,  // -O1: as fast as Full where the vector loops are written out, in half the compile time (docs/build.md)
  Full,   // -O2: for text that leaves loops to the compiler, e.g. a user's own kernels
};

struct CompileOptions {
  Isa isa = Isa::Native;
  // One per source where sources differ (a library that picks its instruction set at run time); empty: all `isa`.
  std::vector<Isa> source_isas;
  Optimization optimization = Optimization::Quick;
  // Multiplications and additions may contract to FMA, divisions become multiplications by reciprocals, the sign of
  // zero is free. NaN and infinity stay, and so does the order of every sum.
  bool fast_math = false;
  std::vector<std::string> extra_flags;  // after all others
  std::vector<std::string> compiler;  // command of the compiler; empty: the first of compiler_candidates() that exists
  double timeout_seconds = 120;       // for one compiler process
  int jobs = 0;                       // compiler processes at a time; 0: one per core

  // The instruction set of source `index`.
  Isa isa_of_source(size_t index) const;
};

struct HostCompiler {
  enum class Kind : uint8_t { Gcc, Clang };
  std::vector<std::string> command;  // absolute path of the program, then arguments of its own
  Kind kind = Kind::Gcc;
  std::string version;  // the first line of --version
};

// $FUSELOOM_CXX, $CXX, g++, clang++, c++: those of the two variables that are set, split at blanks.
std::vector<std::vector<std::string>> compiler_candidates();

// The first candidate found in $PATH. Its version comes from the cache while the program file is the same (path, size,
// modification time); otherwise `--version` is run. Throws Unsupported naming what was tried.
HostCompiler find_host_compiler(const std::vector<std::vector<std::string>>& candidates, const DiskCache& cache);

// Flags for compiling, without files: what the cache key holds, next to the compiler's version.
std::vector<std::string> compile_flags(const CompileOptions& options, Isa isa);
std::vector<std::string> link_flags(const HostCompiler& compiler);

// Compiles the sources into one shared library: one compiler process for one source; several are compiled in parallel
// and linked. Exported: what is extern "C". Needs libc and libm only. Throws BuildError.
Bytes compile_host_library(const HostCompiler& compiler, const std::vector<std::string>& sources,
                           const CompileOptions& options);

}  // namespace fuseloom::build
