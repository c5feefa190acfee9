// Source text → something that runs, through the disk cache: look up, else compile and publish.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "build/disk_cache.h"
#include "build/host_compiler.h"
#include "build/nvrtc.h"
#include "build/shared_object.h"

namespace fuseloom::build {

struct BuildStatistics {
  int64_t hits = 0;           // taken from the cache
  int64_t misses = 0;         // compiled
  int64_t refused = 0;        // whole in the cache, but the loader refused it; compiled again
  double lookup_seconds = 0;  // finding the compiler, hashing, reading
  double compile_seconds = 0;
  double store_seconds = 0;
  double load_seconds = 0;
  BuildStatistics& operator+=(const BuildStatistics& other);
};

struct Binary {
  SharedObject library;
  Bytes bytes;  // of the library: what an archive holds
  base::Hash128 key;
  BuildStatistics statistics;
};

// The library of the sources, loaded. The key is made of the sources, the flags, the compiler's version and the
// instruction set, so equal input in any process finds it. `cache` may be null: compile every time. Throws Unsupported
// (no compiler, instruction set this machine lacks), BuildError.
Binary build_host_library(const std::vector<std::string>& sources, const CompileOptions& options,
                          const DiskCache* cache);

// The same without loading it: for a library that is shipped, which this machine need not be able to run.
struct HostLibrary {
  Bytes bytes;
  base::Hash128 key;
  BuildStatistics statistics;
};
HostLibrary build_host_library_bytes(const std::vector<std::string>& sources, const CompileOptions& options,
                                     const DiskCache* cache);

struct CudaModule {
  Bytes bytes;  // cubin or PTX, for cuModuleLoadData
  base::Hash128 key;
  BuildStatistics statistics;
};
// A hit does not load NVRTC. Throws Unsupported (no NVRTC, an architecture it does not know), BuildError.
CudaModule build_cuda_module(const std::string& source, const CudaOptions& options, const DiskCache* cache);

// One module for each source, in parallel.
std::vector<CudaModule> build_cuda_modules(const std::vector<std::string>& sources, const CudaOptions& options, const DiskCache* cache);

// Into how many sources `kernels` kernels are best divided for `cores` cores (0: those of this machine). A compiler
// process costs about as much as compiling one kernel, the link step that several sources need half as much.
int32_t suggested_source_count(int32_t kernels, int32_t cores = 0);

}  // namespace fuseloom::build
