// A model and its inputs as the command line names them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/pipeline.h"
#include "graph/evaluate.h"
#include "graph/graph.h"
#include "run/archive.h"

namespace fuseloom::tool {

// What every verb that takes a model has in common.
struct ModelArguments {
  std::string path;                        // .onnx, graph text, or an archive
  std::vector<std::string> inputs;         // NAME=FILE.npy, NAME=FILE.pb, NAME=random
  std::vector<std::string> dims;           // NAME=N: sizes of random inputs
  std::vector<std::string> fixed;          // NAME=N: dimensions that become numbers before compiling
  std::string device = "cpu";
  std::string isa = "native";
  int32_t threads = 0;
  uint64_t seed = 1;
  bool no_fuse = false;
  bool poison = false;
  bool graphs = false;
  bool tf32 = false;
  bool no_library = false;
  std::string cache_dir;                   // where given
  bool has_cache_dir = false;
  bool json = false;
};

struct Model {
  graph::Graph graph;                      // of an archive: its inputs only
  std::shared_ptr<const run::Archive> archive;
  std::vector<std::string> input_names;    // as in the file
  std::vector<std::string> output_names;
};

// Throws UserError or Unsupported.
Model load_model(const ModelArguments& arguments);

// The inputs in the graph's order: from files, otherwise random by the seed. Sizes that neither a file nor --dim gives
// are the smallest that the model allows, at least 1; they are named on standard error.
std::vector<Tensor> make_inputs(const Model& model, const ModelArguments& arguments);

run::ArchiveOptions archive_options(const ModelArguments& arguments);

// What --dim says.
std::map<std::string, int64_t> given_dims(const ModelArguments& arguments);

// Compiles the model, or loads it where it is an archive: its report has counts and times only then.
compile::Compiled make_executable(const Model& model, const ModelArguments& arguments, std::span<const Tensor> inputs);

// cuda-host, or device N of the driver: cuda:N.
std::shared_ptr<run::CudaDevice> open_device(const std::string& name);

// Launches of one call that a library does. It profiles a call: what was measured before is gone.
int64_t library_calls(const run::Executable& executable, std::span<const Tensor> inputs);

// Options for the pipeline; the sizes of `inputs` are the hint.
compile::Options make_options(const ModelArguments& arguments, const Model& model, std::span<const Tensor> inputs);

// One tensor from an .npy file or a serialised TensorProto (.pb).
Tensor read_tensor(const std::string& path);

// Reproducible on every machine: floats uniform in [-1, 1), 8-bit and 16-bit integers over their whole range, wider ones
// and bool 0 or 1, which is a valid index into most tables.
Tensor random_tensor(DType dtype, Dims dims, uint64_t seed);

}  // namespace fuseloom::tool
