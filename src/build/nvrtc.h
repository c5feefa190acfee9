// NVRTC, NVIDIA's run-time compiler for CUDA C++, found with dlopen: CUDA text in, cubin or PTX out. Needs no GPU and
// no driver.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "build/file.h"

namespace fuseloom::build {

enum class CudaOutput : uint8_t {
  Cubin,  // machine code for exactly this architecture
  Ptx,    // compiled further by the driver, for this architecture and later ones
};

struct CudaOptions {
  std::string architecture = "90";  // compute capability without the dot: "80", "90", "90a", "100"
  CudaOutput output = CudaOutput::Cubin;
  bool fast_math = false;                // FMA contraction, approximate division and square root; denormals stay
  int32_t max_registers = 0;             // per thread; 0: no cap
  std::vector<std::string> extra_flags;  // after all others
};

// The flags NVRTC is given: what the cache key holds, next to the identity of the library.
std::vector<std::string> cuda_flags(const CudaOptions& options);

// The library's file, found but not loaded.
struct NvrtcLibrary {
  std::string path;
  std::string identity;  // path, size and modification time: names the version without loading 100 MB
};

// Where NVRTC is looked for: $CUDA_HOME, $CUDA_PATH, /usr/local/cuda, the system's library folders, and last the
// dynamic loader's own search; newest version first in each.
std::vector<std::string> nvrtc_candidates();
// The first candidate there is. Throws Unsupported naming all of them.
NvrtcLibrary find_nvrtc(const std::vector<std::string>& candidates);

// The loaded library. Copies share it. Stays loaded for the life of the process: it does not survive being unloaded.
class Nvrtc {
 public:
  // Throws Unsupported when the file cannot be loaded or lacks a function.
  explicit Nvrtc(const NvrtcLibrary& library);

  std::pair<int, int> version() const;               // major, minor
  std::vector<int> supported_architectures() const;  // 75, 80, ...

  struct Output {
    Bytes bytes;      // PTX ends with a zero byte, as the driver expects it
    std::string log;  // warnings; empty as a rule
  };
  // Throws BuildError (host_compiler.h) when NVRTC refuses the text, which then stays on disk. Thread-safe.
  Output compile(const std::string& source, const CudaOptions& options) const;

 private:
  struct Functions;
  std::shared_ptr<const Functions> functions_;
};

}  // namespace fuseloom::build
