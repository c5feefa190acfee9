// The pipeline: the one place that lists what happens to a graph on its way to an executable.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "build/compile_service.h"
#include "build/isa.h"
#include "emit/cpp.h"
#include "graph/graph.h"
#include "graph/pass/pass.h"
#include "run/cuda_device.h"
#include "run/executable.h"
#include "schedule/lower_program.h"

namespace fuseloom::compile {

struct Options {
  // ---- what to do
  bool fuse = true;                                 // false: a kernel per node, for comparison and bisection
  program::Device device = program::Device::Cpu;
  std::shared_ptr<run::CudaDevice> cuda_device;     // Device::Cuda: where; absent: the driver's first. With the host's driver
                                                    // (run/host_driver.h) kernels are compiled for the host
  build::Isa isa = build::Isa::Native;
  schedule::SizeHint hint;                          // typical sizes of symbols
  std::vector<std::string> skip_passes;             // by name
  // ---- how to run
  int32_t threads = 0;                              // 0: as many as there are cores
  run::RunOptions run;
  std::shared_ptr<run::ThreadPool> pool;            // shared between programs; made when absent
  // ---- where to keep compiled kernels: a folder; "" keeps nothing
  std::optional<std::string> cache_dir;             // absent: build::default_cache_dir()
  // ---- what to show: a folder for every stage as a numbered file (A18); absent: FUSELOOM_TRACE from the environment
  std::optional<std::string> trace_dir;
  bool verify = true;                               // verify every IR after every stage
  bool dry_run = false;                             // compile and plan, launch nothing: kernels do nothing (A18)
  std::function<void(const std::string& pass, const graph::Graph&)> before_pass, after_pass;
};

// What compiling gave, stage by stage.
struct Report {
  std::vector<graph::PassReport> passes;
  size_t nodes = 0;                                 // after the passes: kernels there would be without fusion
  size_t kernels = 0;                               // launches
  size_t distinct_kernels = 0;
  size_t products = 0;                              // launches that the device's library of matrix products may do
  double passes_seconds = 0, lower_seconds = 0, emit_seconds = 0, build_seconds = 0, load_seconds = 0, total_seconds = 0;
  bool from_cache = false;
  std::string explanation;                          // groups, choices, boundaries
  std::string graph_text, kernels_text, program_text, source;   // source: the translation units, one after the other
};

struct Compiled {
  std::shared_ptr<run::Executable> executable;
  Report report;
};

// The passes of the pipeline, in order.
std::vector<graph::NamedPass> pipeline_passes();

// ---- the stages, for outputs that are not run here -------------------------------------------------------------------
class Trace;
// Where traces go: the option, else FUSELOOM_TRACE; "" for none.
std::string trace_dir(const Options& options);
// 1. Runs the passes.
void run_pipeline_passes(graph::Graph& graph, const Options& options, Report& report, Trace& trace);

// 2. The host program, its kernels and their translation units for one instruction set, which this machine need not have.
emit::CppTarget cpp_target(build::Isa isa);         // not Native
struct LoweredTarget {
  build::Isa isa = build::Isa::Baseline;            // never Native
  program::Program program;
  std::vector<kernel::Kernel> kernels;
  std::vector<op::SourceKernelInstance> source_kernels;   // user-written ones
  std::vector<std::string> sources;
};
LoweredTarget lower_for(const graph::Graph& graph, build::Isa isa, const Options& options, Report& report, Trace& trace);

// The same for a CUDA device: a translation unit for each kernel.
struct LoweredCuda {
  program::Program program;
  std::vector<kernel::Kernel> kernels;
  std::vector<std::string> sources;                 // by kernel
};
// `library_products`: there is a library of matrix products, or may be.
LoweredCuda lower_for_cuda(const graph::Graph& graph, const schedule::CudaTarget& target, bool library_products, const Options& options, Report& report, Trace& trace);

// Takes the graph. Throws UserError, Unsupported or InternalError.
Compiled compile(graph::Graph graph, const Options& options = {});

}  // namespace fuseloom::compile
