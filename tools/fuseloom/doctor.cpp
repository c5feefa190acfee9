#include <filesystem>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "build/disk_cache.h"
#include "build/host_compiler.h"
#include "build/isa.h"
#include "build/nvrtc.h"
#include "compile/pipeline.h"
#include "graph/text.h"
#include "op/op.h"
#include "run/cuda_device.h"
#include "run/product_library.h"
#include "verbs.h"

namespace fuseloom::tool {

namespace {

// What a program on a CUDA device uses, each with what was found or why nothing was.
nlohmann::ordered_json cuda_libraries(nlohmann::ordered_json& devices) {
  nlohmann::ordered_json found;
  const auto look = [&](const char* name, const auto& describe) {
    try {
      found[name] = {{"found", true}, {"description", describe()}};
    } catch (const Error& missing) {
      found[name] = {{"found", false}, {"description", missing.what()}};
    }
  };
  std::shared_ptr<run::CudaDevice> device;
  look("libcuda", [&] {
    const std::shared_ptr<const run::CudaDriver> driver = run::load_cuda_driver();
    int count = 0;
    driver->device_count(&count);
    for (int32_t i = 0; i < count; ++i) {
      const std::shared_ptr<run::CudaDevice> each = run::CudaDevice::open(driver, i);
      if (i == 0) device = each;
      const run::CudaProperties& properties = each->properties();
      devices.push_back(fmt::format("cuda:{} {}, compute capability {}.{}, {} multiprocessors, {} MiB", i, properties.name, properties.major, properties.minor,
                                    properties.multiprocessors, properties.memory_bytes >> 20));
    }
    return driver->description;
  });
  look("NVRTC", [&] {
    const build::NvrtcLibrary library = build::find_nvrtc(build::nvrtc_candidates());
    const build::Nvrtc nvrtc(library);
    return fmt::format("NVRTC {}.{} ({}), for architectures {}", nvrtc.version().first, nvrtc.version().second, library.path, fmt::join(nvrtc.supported_architectures(), " "));
  });
  // Without a device it is found, but does not start, and says so.
  look("cuBLASLt", [&] {
    if (device != nullptr) device->make_current();
    return run::ProductLibrary::load()->description();
  });
  return found;
}

// Compiles and runs y = x + 1 without the cache: "" when the whole path works.
std::string try_compiling() {
  try {
    compile::Options options{.threads = 1};
    options.cache_dir = "";
    const compile::Compiled compiled =
        compile::compile(graph::parse_graph("graph main(%x: f32[n]) {\n  %one: f32[] = constant() {value = f32[] {1.0}}\n"
                                            "  %y: f32[n] = add(%x, %one)\n  return %y\n}\n", op::standard_ops()), options);
    const std::vector<Tensor> inputs{Tensor::of(DType::F32, {3}, {1, 2, 3})};
    const std::vector<Tensor> outputs = compiled.executable->run(inputs);
    return outputs[0].at(2) == 4 ? "" : "the result is wrong";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

int doctor(bool as_json) {
  nlohmann::ordered_json json;
  json["cores"] = std::thread::hardware_concurrency();
  json["isa"] = build::isa_name(build::detect_isa());
  const std::string cache = build::default_cache_dir();
  json["cache"] = {{"directory", cache}, {"entries", 0}, {"bytes", 0}};
  std::error_code error;
  if (!cache.empty()) {
    int64_t entries = 0, bytes = 0;
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(cache, error)) {
      if (entry.path().extension() != ".entry") continue;
      ++entries;
      bytes += static_cast<int64_t>(entry.file_size(error));
    }
    json["cache"]["entries"] = entries;
    json["cache"]["bytes"] = bytes;
  }
  try {
    const build::HostCompiler compiler = build::find_host_compiler(build::compiler_candidates(), build::DiskCache(""));
    json["compiler"] = {{"command", fmt::format("{}", fmt::join(compiler.command, " "))}, {"version", compiler.version}};
  } catch (const Unsupported& missing) {
    json["compiler"] = {{"error", missing.what()}};
  }
  json["devices"] = {"cpu"};
  json["libraries"] = cuda_libraries(json["devices"]);
  const std::string problem = try_compiling();
  json["ok"] = problem.empty();
  if (!problem.empty()) json["problem"] = problem;
  if (as_json) {
    fmt::print("{}\n", json.dump());
    return problem.empty() ? kOk : kUnsupported;
  }
  fmt::print("cores      {}\nisa        {}\n", json["cores"].dump(), json["isa"].get<std::string>());
  for (const auto& device : json["devices"]) fmt::print("device     {}\n", device.get<std::string>());
  if (json["compiler"].contains("error")) {
    fmt::print("compiler   none: {}\n", json["compiler"]["error"].get<std::string>());
  } else {
    fmt::print("compiler   {} ({})\n", json["compiler"]["command"].get<std::string>(), json["compiler"]["version"].get<std::string>());
  }
  fmt::print("cache      {}\n", cache.empty() ? "off" : fmt::format("{} ({} entries, {} bytes)", cache, json["cache"]["entries"].dump(), json["cache"]["bytes"].dump()));
  for (const auto& [name, library] : json["libraries"].items())
    fmt::print("{:<10} {}{}\n", name, library["found"].get<bool>() ? "" : "missing (for CUDA devices only): ", library["description"].get<std::string>());
  fmt::print("{}\n", problem.empty() ? "a program was compiled and run: everything works" : "PROBLEM: " + problem);
  return problem.empty() ? kOk : kUnsupported;
}

}  // namespace fuseloom::tool
