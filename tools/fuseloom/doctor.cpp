#include <dlfcn.h>

#include <filesystem>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "build/disk_cache.h"
#include "build/host_compiler.h"
#include "build/isa.h"
#include "compile/pipeline.h"
#include "graph/text.h"
#include "op/op.h"
#include "verbs.h"

namespace fuseloom::tool {

namespace {

bool can_open(const char* library) {
  void* handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return false;
  dlclose(handle);
  return true;
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
  json["libraries"] = nlohmann::ordered_json::object();
  for (const char* library : {"libmvec.so.1", "libcuda.so.1", "libnvrtc.so.12", "libcublasLt.so.12", "libcudnn.so.9", "libnccl.so.2", "libdnnl.so.3"})
    json["libraries"][library] = can_open(library);
  json["devices"] = {"cpu"};
  const std::string problem = try_compiling();
  json["ok"] = problem.empty();
  if (!problem.empty()) json["problem"] = problem;
  if (as_json) {
    fmt::print("{}\n", json.dump());
    return problem.empty() ? kOk : kUnsupported;
  }
  fmt::print("cores      {}\nisa        {}\ndevices    cpu\n", json["cores"].dump(), json["isa"].get<std::string>());
  if (json["compiler"].contains("error")) {
    fmt::print("compiler   none: {}\n", json["compiler"]["error"].get<std::string>());
  } else {
    fmt::print("compiler   {} ({})\n", json["compiler"]["command"].get<std::string>(), json["compiler"]["version"].get<std::string>());
  }
  fmt::print("cache      {}\n", cache.empty() ? "off" : fmt::format("{} ({} entries, {} bytes)", cache, json["cache"]["entries"].dump(), json["cache"]["bytes"].dump()));
  for (const auto& [name, found] : json["libraries"].items()) fmt::print("library    {} {}\n", name, found.get<bool>() ? "found" : "not found (optional)");
  fmt::print("{}\n", problem.empty() ? "a program was compiled and run: everything works" : "PROBLEM: " + problem);
  return problem.empty() ? kOk : kUnsupported;
}

}  // namespace fuseloom::tool
