// Ahead of time: a graph → C++ text or a shared library that stands alone (docs/aot.md).
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "compile/pipeline.h"

namespace fuseloom::compile {

enum class WeightsPlace : uint8_t {
  Embedded,  // in the library
  File       // beside it: given when an instance is made
};

struct AotOptions {
  std::string name = "model";              // becomes a C identifier: NAME_model() is the entry
  std::vector<std::string> input_names, output_names;   // as callers know them; empty: those of the graph
  std::vector<build::Isa> isas;            // variants, narrow to wide; the library picks one at run time. Empty: all
  WeightsPlace weights = WeightsPlace::Embedded;
  bool observable = false;                 // fuseloom_arguments.observe works
  std::vector<std::string> extra_flags;    // for the compiler, e.g. -fsanitize=address
  std::function<void(const std::string& step)> progress;
};

struct AotReport {
  std::vector<std::string> isas;
  size_t nodes = 0;
  std::vector<size_t> kernels;             // distinct ones, by variant
  double passes_seconds = 0, lower_seconds = 0, emit_seconds = 0, build_seconds = 0;
};

struct AotSource {
  std::string text;
  std::string weights_file;                // its name in the text
  std::vector<std::byte> weights;          // what the file holds; empty without constants
  AotReport report;
};
// One C++ file. `options.weights` decides whether the assembler includes `weights_file`.
AotSource compile_to_source(graph::Graph graph, const Options& options, const AotOptions& aot, const std::string& weights_file);

struct AotLibrary {
  build::Bytes bytes;
  std::vector<std::byte> weights;          // for a file beside it; empty when embedded or without constants
  int64_t weights_bytes = 0;               // wherever they are
  AotReport report;
};
// Throws Unsupported with the full list when the program needs ops that generated code cannot run.
AotLibrary compile_to_library(graph::Graph graph, const Options& options, const AotOptions& aot);

}  // namespace fuseloom::compile
