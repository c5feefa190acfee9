// Graphs → compiled libraries, loaded through the C interface, next to the interpreter.
#pragma once
#include <gtest/gtest.h>
#include <fmt/format.h>
#include <cstdlib>
#include <cstring>

#include <string>
#include <vector>

#include "build/file.h"
#include "build/isa.h"
#include "compile/aot.h"
#include "fuseloom/model.hpp"
#include "graph/text.h"

namespace fuseloom::test {

inline graph::Graph parse(std::string_view text) { return graph::parse_graph(text, op::standard_ops()); }

inline std::vector<build::Isa> isas_here() {
  std::vector<build::Isa> isas{build::Isa::Baseline};
  for (const build::Isa isa : {build::Isa::Avx2, build::Isa::Avx512}) {
    if (build::runs_here(isa)) isas.push_back(isa);
  }
  return isas;
}
inline int32_t abi_isa(build::Isa isa) {
  return isa == build::Isa::Avx512 ? FUSELOOM_ISA_AVX512 : isa == build::Isa::Avx2 ? FUSELOOM_ISA_AVX2 : FUSELOOM_ISA_BASELINE;
}

// A library in a folder that goes away.
class CompiledModel {
 public:
  explicit CompiledModel(const compile::AotLibrary& library) : model_(write(directory_, library)) {}
  const Model& model() const { return model_; }
  std::string path() const { return directory_.path() + "/model.so"; }

 private:
  static std::string write(const build::TemporaryDirectory& directory, const compile::AotLibrary& library) {
    const std::string path = directory.path() + "/model.so";
    build::write_file(path, library.bytes);
    return path;
  }
  build::TemporaryDirectory directory_;
  Model model_;
};

inline compile::AotLibrary compile_library(const graph::Graph& graph, const compile::AotOptions& aot = {}) {
  compile::Options options;
  options.cache_dir = "";
  return compile::compile_to_library(graph.clone(), options, aot);
}

inline compile::AotSource compile_source(const graph::Graph& graph, const compile::AotOptions& aot = {}) {
  compile::Options options;
  options.cache_dir = "";
  return compile::compile_to_source(graph.clone(), options, aot, "model.weights");
}

// Generated text, compiled as a user would, with warnings as errors: "-shared ..." gives a library, "-DFUSELOOM_MAIN" a program.
class CompiledSource {
 public:
  CompiledSource(const compile::AotSource& source, const std::string& compiler, const std::string& flags = "-fPIC -fvisibility=hidden -shared") {
    build::write_file(directory_.path() + "/model.cpp", build::as_bytes(source.text));
    if (!source.weights.empty()) build::write_file(directory_.path() + "/model.weights", source.weights);
    const int status = run(fmt::format("{} -std=c++17 -O1 -Wall -Wextra -Werror -fwrapv -fno-strict-aliasing {} model.cpp -o model", compiler, flags));
    if (status != 0 || !output().empty()) log_ = fmt::format("{} {}: {}\n{}", compiler, flags, status, output());
  }
  // "" when it compiled without a word.
  const std::string& log() const { return log_; }
  std::string path() const { return directory_.path() + "/model"; }
  // In the folder of the text; what it prints is output().
  int run(const std::string& command) const { return std::system(fmt::format("cd {} && {} >output 2>&1", directory_.path(), command).c_str()); }
  std::string output() const {
    const std::optional<build::Bytes> bytes = build::read_file(directory_.path() + "/output");
    return bytes ? std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size()) : "";
  }

 private:
  build::TemporaryDirectory directory_;
  std::string log_;
};

inline std::vector<Argument> arguments_of(std::span<const Tensor> inputs) {
  std::vector<Argument> arguments;
  for (const Tensor& input : inputs) arguments.emplace_back("", static_cast<int32_t>(input.dtype()), input.data(), input.dims(), input.strides());
  return arguments;
}

inline Tensor tensor_of(const Result& result) {
  Tensor tensor(static_cast<DType>(result.dtype), result.sizes);
  if (result.bytes > 0) std::memcpy(tensor.data(), result.data(), result.bytes);
  return tensor;
}

// "" when both are the same tensor, bit by bit.
inline std::string bit_difference(const Tensor& expected, const Tensor& got) {
  if (expected.dtype() != got.dtype() || expected.dims() != got.dims()) return expected.type_string() + " expected, got " + got.type_string();
  const Tensor a = expected.to_contiguous(), b = got.to_contiguous();
  for (int64_t i = 0; i < a.bytes(); ++i) {
    if (a.as<char>()[i] != b.as<char>()[i]) return fmt::format("element {} of {}: {} expected, got {}", i / dtype_bytes(a.dtype()), a.type_string(), a.at(i / dtype_bytes(a.dtype())), b.at(i / dtype_bytes(a.dtype())));
  }
  return "";
}

}  // namespace fuseloom::test
