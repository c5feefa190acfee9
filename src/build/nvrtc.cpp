#include "build/nvrtc.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/check.h"
#include "build/host_compiler.h"

namespace fuseloom::build {
namespace {

// The few declarations of nvrtc.h that are used; NVIDIA keeps them stable across versions.
using Program = struct NvrtcProgram*;
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kCompilationFailed = 6;
constexpr Result kInvalidOption = 5;

constexpr std::string_view kLibraryNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr std::string_view kSourceName = "kernels.cu";

std::string joined(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& item : list) text += (text.empty() ? "" : ", ") + item;
  return text;
}

// NVRTC writes "kernels.cu(12): error: words".
struct FirstError {
  std::string text;
  int line = 0;
};
FirstError first_error(std::string_view log) {
  FirstError first;
  while (!log.empty()) {
    const size_t end = std::min(log.find('\n'), log.size());
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(std::min(end + 1, log.size()));
    if (first.text.empty() && !line.empty()) first.text = line;  // for lack of a better one
    if (line.find("error") == std::string_view::npos) continue;
    first.text = line;
    const std::string before = std::string(kSourceName) + "(";
    if (line.starts_with(before)) first.line = std::atoi(std::string(line.substr(before.size())).c_str());
    break;
  }
  return first;
}

}  // namespace

struct Nvrtc::Functions {
  std::string path;
  Result (*version)(int* major, int* minor);
  Result (*number_of_architectures)(int* count);
  Result (*architectures)(int* list);
  Result (*create_program)(Program* program, const char* source, const char* name, int headers,
                           const char* const* texts, const char* const* names);
  Result (*destroy_program)(Program* program);
  Result (*compile_program)(Program program, int options, const char* const* list);
  Result (*cubin_size)(Program program, size_t* size);
  Result (*cubin)(Program program, char* bytes);
  Result (*ptx_size)(Program program, size_t* size);
  Result (*ptx)(Program program, char* bytes);
  Result (*log_size)(Program program, size_t* size);
  Result (*log)(Program program, char* text);
  const char* (*error_string)(Result result);

  void require(Result result, std::string_view what) const {
    FL_CHECK(result == kSuccess, "NVRTC ({}) cannot {}: {}", path, what, error_string(result));
  }
};

std::vector<std::string> nvrtc_candidates() {
  std::vector<std::string> directories;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = std::getenv(variable); root && *root) {
      directories.push_back(std::string(root) + "/lib64");
      directories.push_back(std::string(root) + "/lib");
    }
  }
#if defined(__x86_64__)
  const char* system = "/usr/lib/x86_64-linux-gnu";
#else
  const char* system = "/usr/lib/aarch64-linux-gnu";
#endif
  for (const char* directory : {"/usr/local/cuda/lib64", "/opt/cuda/lib64", system, "/usr/lib64"}) {
    directories.push_back(directory);
  }
  std::vector<std::string> candidates;
  for (const std::string& directory : directories) {
    for (const std::string_view name : kLibraryNames) candidates.push_back(fmt::format("{}/{}", directory, name));
  }
  for (const std::string_view name : kLibraryNames) candidates.emplace_back(name);
  return candidates;
}

NvrtcLibrary find_nvrtc(const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates) {
    std::string path = candidate;
    if (candidate.find('/') == std::string::npos) {
      // Only the loader knows where it finds a bare name.
      void* handle = dlopen(candidate.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
      if (!handle) continue;
      Dl_info info;
      void* symbol = dlsym(handle, "nvrtcVersion");
      if (!symbol || !dladdr(symbol, &info) || !info.dli_fname) continue;
      path = info.dli_fname;
    }
    std::error_code error;
    const std::filesystem::path file = std::filesystem::canonical(path, error);
    struct stat status;
    if (error || stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    return {.path = path,
            .identity = fmt::format("nvrtc {} {} {}.{:09}", file.string(), status.st_size, status.st_mtim.tv_sec,
                                    status.st_mtim.tv_nsec)};
  }
  throw Unsupported(
      fmt::format("NVRTC, which compiles the CUDA kernels, is not installed: tried {}; install the CUDA toolkit (12 or "
                  "later) or set "
                  "CUDA_HOME to it",
                  joined(candidates)));
}

std::vector<std::string> cuda_flags(const CudaOptions& options) {
  std::vector<std::string> flags;
  switch (options.output) {
    case CudaOutput::Cubin:
      flags.push_back("--gpu-architecture=sm_" + options.architecture);
      break;
    case CudaOutput::Ptx:
      flags.push_back("--gpu-architecture=compute_" + options.architecture);
      break;
  }
  // Generated text marks kernels only: everything else in it is for the device.
  flags.insert(flags.end(), {"--std=c++17", "--disable-warnings", "--device-as-default-execution-space", "--device-int128"});
  // As on the CPU, no FMA where none is written (docs/numerics.md).
  if (options.fast_math) {
    flags.insert(flags.end(), {"--fmad=true", "--prec-div=false", "--prec-sqrt=false"});
  } else {
    flags.push_back("--fmad=false");
  }
  if (options.max_registers > 0) flags.push_back(fmt::format("--maxrregcount={}", options.max_registers));
  flags.insert(flags.end(), options.extra_flags.begin(), options.extra_flags.end());
  return flags;
}

Nvrtc::Nvrtc(const NvrtcLibrary& library) {
  void* handle = dlopen(library.path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!handle) {
    const char* message = dlerror();
    throw Unsupported(fmt::format("cannot load NVRTC: {}", message ? message : library.path));
  }
  auto functions = std::make_shared<Functions>();
  functions->path = library.path;
  const auto bind = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    FL_SUPPORTED(function, "NVRTC {} is too old: it has no {}; install the CUDA toolkit 12 or later", library.path,
                 name);
  };
  bind(functions->version, "nvrtcVersion");
  bind(functions->number_of_architectures, "nvrtcGetNumSupportedArchs");
  bind(functions->architectures, "nvrtcGetSupportedArchs");
  bind(functions->create_program, "nvrtcCreateProgram");
  bind(functions->destroy_program, "nvrtcDestroyProgram");
  bind(functions->compile_program, "nvrtcCompileProgram");
  bind(functions->cubin_size, "nvrtcGetCUBINSize");
  bind(functions->cubin, "nvrtcGetCUBIN");
  bind(functions->ptx_size, "nvrtcGetPTXSize");
  bind(functions->ptx, "nvrtcGetPTX");
  bind(functions->log_size, "nvrtcGetProgramLogSize");
  bind(functions->log, "nvrtcGetProgramLog");
  bind(functions->error_string, "nvrtcGetErrorString");
  functions_ = std::move(functions);
}

std::pair<int, int> Nvrtc::version() const {
  int major = 0, minor = 0;
  functions_->require(functions_->version(&major, &minor), "tell its version");
  return {major, minor};
}

std::vector<int> Nvrtc::supported_architectures() const {
  int count = 0;
  functions_->require(functions_->number_of_architectures(&count), "count its architectures");
  std::vector<int> list(static_cast<size_t>(count));
  functions_->require(functions_->architectures(list.data()), "list its architectures");
  return list;
}

Nvrtc::Output Nvrtc::compile(const std::string& source, const CudaOptions& options) const {
  const Functions& nvrtc = *functions_;
  Program program = nullptr;
  nvrtc.require(nvrtc.create_program(&program, source.c_str(), std::string(kSourceName).c_str(), 0, nullptr, nullptr),
                "take a source");
  const auto destroy = [&nvrtc](Program p) { nvrtc.destroy_program(&p); };
  const std::unique_ptr<struct NvrtcProgram, decltype(destroy)> owner(program, destroy);

  const std::vector<std::string> flags = cuda_flags(options);
  std::vector<const char*> flag_pointers;
  for (const std::string& flag : flags) flag_pointers.push_back(flag.c_str());
  const Result result = nvrtc.compile_program(program, static_cast<int>(flags.size()), flag_pointers.data());

  Output output;
  size_t log_size = 0;
  if (nvrtc.log_size(program, &log_size) == kSuccess && log_size > 1) {
    output.log.resize(log_size);
    nvrtc.require(nvrtc.log(program, output.log.data()), "give its log");
    output.log.resize(log_size - 1);  // without the final zero
  }
  FL_SUPPORTED(result != kInvalidOption, "NVRTC {} refuses the flags {}: {}", nvrtc.path, joined(flags),
               output.log.empty() ? nvrtc.error_string(result) : output.log);
  if (result != kSuccess) {
    TemporaryDirectory directory;
    const std::string path = fmt::format("{}/{}", directory.path(), kSourceName);
    write_file(path, as_bytes(source));
    directory.keep();
    const FirstError error = first_error(output.log);
    throw BuildError(fmt::format("NVRTC failed ({}) on generated source {}, which is kept: {}; flags: {}",
                                 result == kCompilationFailed ? "compilation error" : nvrtc.error_string(result), path,
                                 error.text.empty() ? "it printed no message" : error.text, joined(flags)),
                     path, error.line, output.log);
  }
  size_t size = 0;
  switch (options.output) {
    case CudaOutput::Cubin:
      nvrtc.require(nvrtc.cubin_size(program, &size), "give a cubin");
      output.bytes.resize(size);
      nvrtc.require(nvrtc.cubin(program, reinterpret_cast<char*>(output.bytes.data())), "give a cubin");
      break;
    case CudaOutput::Ptx:
      nvrtc.require(nvrtc.ptx_size(program, &size), "give PTX");
      output.bytes.resize(size);
      nvrtc.require(nvrtc.ptx(program, reinterpret_cast<char*>(output.bytes.data())), "give PTX");
      break;
  }
  return output;
}

}  // namespace fuseloom::build
