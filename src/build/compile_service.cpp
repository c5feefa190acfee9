#include "build/compile_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/check.h"

namespace fuseloom::build {
namespace {

// Changes when the meaning of a key's parts changes.
constexpr std::string_view kHostKeyVersion = "fuseloom host library 1";
constexpr std::string_view kCudaKeyVersion = "fuseloom cuda module 1";

class Stopwatch {
 public:
  // Seconds since the last lap.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - start_).count();
    start_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Appends a part with its length, so that no two lists of parts give one text.
void add_part(std::string& text, std::string_view part) {
  text += fmt::format("{}:", part.size());
  text += part;
}

void add_parts(std::string& text, const std::vector<std::string>& parts) {
  text += fmt::format("[{}]", parts.size());
  for (const std::string& part : parts) add_part(text, part);
}

base::Hash128 host_key(const HostCompiler& compiler, const std::vector<std::string>& sources,
                       const CompileOptions& options) {
  std::string text(kHostKeyVersion);
  add_parts(text, compiler.command);
  add_part(text, compiler.version);
  add_parts(text, link_flags(compiler));
  for (size_t i = 0; i < sources.size(); ++i) {
    const Isa isa = options.isa_of_source(i);
    add_part(text, isa_identity(isa));
    add_parts(text, compile_flags(options, isa));
    add_part(text, sources[i]);
  }
  return base::hash_text(text);
}

// Looks up, else compiles and publishes. `accept` decides whether the bytes of a hit will do, and keeps what it made of
// them.
template <class Accept>
HostLibrary look_up_or_compile(const std::vector<std::string>& sources, const CompileOptions& options,
                               const DiskCache& cache, Accept accept) {
  HostLibrary result;
  Stopwatch watch;
  const HostCompiler compiler = find_host_compiler(
      options.compiler.empty() ? compiler_candidates() : std::vector<std::vector<std::string>>{options.compiler},
      cache);
  result.key = host_key(compiler, sources, options);
  std::optional<Bytes> cached = cache.get(result.key);
  result.statistics.lookup_seconds = watch.lap();
  if (cached) {
    if (accept(*cached, result)) {
      result.statistics.hits = 1;
      result.bytes = std::move(*cached);
      return result;
    }
    result.statistics.refused = 1;
    watch.lap();
  }
  result.bytes = compile_host_library(compiler, sources, options);
  result.statistics.misses = 1;
  result.statistics.compile_seconds = watch.lap();
  cache.put(result.key, result.bytes);
  result.statistics.store_seconds = watch.lap();
  return result;
}

}  // namespace

BuildStatistics& BuildStatistics::operator+=(const BuildStatistics& other) {
  hits += other.hits;
  misses += other.misses;
  refused += other.refused;
  lookup_seconds += other.lookup_seconds;
  compile_seconds += other.compile_seconds;
  store_seconds += other.store_seconds;
  load_seconds += other.load_seconds;
  return *this;
}

HostLibrary build_host_library_bytes(const std::vector<std::string>& sources, const CompileOptions& options,
                                     const DiskCache* cache) {
  const DiskCache none("");
  return look_up_or_compile(sources, options, cache ? *cache : none, [](const Bytes&, HostLibrary&) { return true; });
}

Binary build_host_library(const std::vector<std::string>& sources, const CompileOptions& options,
                          const DiskCache* cache) {
  FL_SUPPORTED(runs_here(options.isa), "code for instruction set '{}' was asked for, but this machine has '{}' only",
               isa_name(options.isa), isa_name(detect_isa()));
  const DiskCache none("");
  SharedObject library;
  const auto load = [&library](const Bytes& bytes, HostLibrary& result) {
    Stopwatch watch;
    library = SharedObject::load(bytes, result.key.hex());
    result.statistics.load_seconds += watch.lap();
  };
  // Whole according to its hashes, and still no library for this system (another libc, a cache carried over from
  // elsewhere): as good as absent.
  const auto accept = [&load](const Bytes& bytes, HostLibrary& result) {
    try {
      load(bytes, result);
      return true;
    } catch (const InternalError&) {
      return false;
    }
  };
  HostLibrary result = look_up_or_compile(sources, options, cache ? *cache : none, accept);
  if (!library.loaded()) load(result.bytes, result);
  return {.library = std::move(library),
          .bytes = std::move(result.bytes),
          .key = result.key,
          .statistics = result.statistics};
}

CudaModule build_cuda_module(const std::string& source, const CudaOptions& options, const DiskCache* cache) {
  const DiskCache none("");
  const DiskCache& store = cache ? *cache : none;
  CudaModule module;
  Stopwatch watch;
  const NvrtcLibrary library = find_nvrtc(nvrtc_candidates());
  std::string text(kCudaKeyVersion);
  add_part(text, library.identity);
  add_parts(text, cuda_flags(options));
  add_part(text, source);
  module.key = base::hash_text(text);
  std::optional<Bytes> cached = store.get(module.key);
  module.statistics.lookup_seconds = watch.lap();
  if (cached) {
    module.statistics.hits = 1;
    module.bytes = std::move(*cached);
    return module;
  }
  module.bytes = Nvrtc(library).compile(source, options).bytes;
  module.statistics.misses = 1;
  module.statistics.compile_seconds = watch.lap();
  store.put(module.key, module.bytes);
  module.statistics.store_seconds = watch.lap();
  return module;
}

std::vector<CudaModule> build_cuda_modules(const std::vector<std::string>& sources, const CudaOptions& options, const DiskCache* cache) {
  std::vector<CudaModule> modules(sources.size());
  std::vector<std::exception_ptr> failures(sources.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < sources.size(); i = next++) {
      try {
        modules[i] = build_cuda_module(sources[i], options, cache);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  const size_t helpers = std::min<size_t>(sources.size(), std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (size_t i = 1; i < helpers; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  // The first of them, whoever came first.
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
  return modules;
}

int32_t suggested_source_count(int32_t kernels, int32_t cores) {
  if (cores <= 0) cores = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  // Two kernels a process at least; one source saves the link step.
  return std::clamp(kernels / 2, 1, cores);
}

}  // namespace fuseloom::build
