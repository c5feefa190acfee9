#include "model.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>

#include "base/check.h"
#include "build/isa.h"
#include "front/npy.h"
#include "front/onnx/importer.h"
#include "front/onnx/mapped_file.h"
#include "front/onnx/tensor_proto.h"
#include "graph/text.h"
#include "op/op.h"
#include "program/line.h"
#include "run/host_driver.h"
#include "sym/evaluator.h"

namespace fuseloom::tool {

namespace {

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// "NAME=VALUE" split at the last '=' (a name in a model may hold one).
std::pair<std::string, std::string> split_assignment(const std::string& text, const std::string& option) {
  const size_t equals = text.rfind('=');
  FL_REQUIRE(equals != std::string::npos && equals > 0 && equals + 1 < text.size(), "{} {}: expected NAME=VALUE", option, text);
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::map<std::string, int64_t> parse_dims(const std::vector<std::string>& arguments, const std::string& option) {
  std::map<std::string, int64_t> dims;
  for (const std::string& argument : arguments) {
    const auto [name, value] = split_assignment(argument, option);
    int64_t size = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), size);
    FL_REQUIRE(error == std::errc() && end == value.data() + value.size() && size >= 0, "{} {}: expected a size >= 0", option, argument);
    dims[name] = size;
  }
  return dims;
}

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

int64_t smallest_size(const graph::Graph& graph, const std::string& symbol) {
  const auto known = graph.facts().symbols.find(symbol);
  if (known == graph.facts().symbols.end()) return 1;
  const sym::Range& range = known->second;
  const int64_t least = std::max<int64_t>(1, range.low), step = std::max<int64_t>(1, range.divisor);
  return std::min((least + step - 1) / step * step, range.high);
}

}  // namespace

Tensor random_tensor(DType dtype, Dims dims, uint64_t seed) {
  Tensor tensor(dtype, std::move(dims));
  Random random(seed);
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const uint64_t bits = random.next();
    const double uniform = static_cast<double>(bits >> 11) * 0x1p-52 - 1;   // [-1, 1)
    if (is_complex(dtype)) {
      tensor.set_complex(i, uniform, static_cast<double>(random.next() >> 11) * 0x1p-52 - 1);
    } else if (is_float(dtype)) {
      tensor.set(i, uniform);
    } else if (is_int(dtype) && dtype_bits(dtype) <= 16) {
      const int64_t span = int64_t{1} << dtype_bits(dtype);
      tensor.set_int(i, static_cast<int64_t>(bits % static_cast<uint64_t>(span)) - (is_signed_int(dtype) ? span / 2 : 0));
    } else {
      tensor.set_int(i, static_cast<int64_t>(bits >> 63));
    }
  }
  return tensor;
}

Tensor read_tensor(const std::string& path) {
  if (!ends_with(path, ".pb")) return front::read_npy(path);
  const front::onnx::MappedFile file = front::onnx::map_file(path);
  const front::onnx::TensorProto proto = front::onnx::parse_tensor(file.bytes, path);
  return front::onnx::TensorSource(path, nullptr, false, "").load(proto).contiguous_copy();
}

namespace {

// Of an archive, the inputs and what is known of their sizes.
graph::Graph inputs_of(const program::Program& program) {
  graph::Graph graph(op::standard_ops(), program.name);
  for (size_t i = 0; i < program.input_types.size(); ++i) graph.add_input(program.input_names[i], program.input_types[i]);
  graph.facts() = program.facts;
  return graph;
}

}  // namespace

run::ArchiveOptions archive_options(const ModelArguments& arguments) {
  run::ArchiveOptions options{.threads = arguments.threads};
  options.run.poison = arguments.poison;
  if (arguments.isa != "native") options.isa = arguments.isa;
  return options;
}

Model load_model(const ModelArguments& arguments) {
  const std::map<std::string, int64_t> fixed = parse_dims(arguments.fixed, "--fix");
  if (ends_with(arguments.path, ".floom")) {
    FL_SUPPORTED(arguments.device == "cpu", "device '{}': archives hold programs for the cpu", arguments.device);
    FL_REQUIRE(fixed.empty() && !arguments.no_fuse, "{}: --fix and --no-fuse have their place when an archive is made, not when it is used", arguments.path);
    auto archive = std::make_shared<const run::Archive>(run::Archive::open(arguments.path));
    const program::Program program = archive->target(archive_options(arguments)).program;
    Model model{.graph = inputs_of(program), .archive = std::move(archive), .input_names = program.input_names};
    for (const program::Output& output : program.outputs) model.output_names.push_back(output.name);
    return model;
  }
  if (ends_with(arguments.path, ".fl")) {
    std::ifstream file(arguments.path, std::ios::binary);
    FL_REQUIRE(file.good(), "{}: cannot be read", arguments.path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    Model model{.graph = graph::parse_graph(text, op::standard_ops(), arguments.path)};
    sym::Substitution numbers;
    for (const auto& [name, size] : fixed) numbers.emplace(name, size);
    model.graph.substitute_symbols(numbers);
    for (const graph::ValueId id : model.graph.inputs()) model.input_names.push_back(model.graph.value(id).name);
    for (const graph::ValueId id : model.graph.outputs()) model.output_names.push_back(model.graph.value(id).name);
    return model;
  }
  front::onnx::ImportedModel imported = front::onnx::import_onnx(arguments.path, {.dims = fixed});
  Model model{.graph = std::move(imported.graph)};
  const auto names = [](const std::vector<front::onnx::ImportedValue>& values, size_t total) {
    std::vector<std::string> out(total);
    for (const front::onnx::ImportedValue& value : values)
      for (size_t i = 0; i < value.count; ++i) out[value.first + i] = value.sequence ? fmt::format("{}_{}", value.name, i) : value.name;
    return out;
  };
  model.input_names = names(imported.inputs, model.graph.inputs().size());
  model.output_names = names(imported.outputs, model.graph.outputs().size());
  return model;
}

std::vector<Tensor> make_inputs(const Model& model, const ModelArguments& arguments) {
  const std::vector<graph::ValueId>& ids = model.graph.inputs();
  std::vector<Tensor> inputs(ids.size());
  std::map<std::string, int64_t> sizes = parse_dims(arguments.dims, "--dim");

  // 1. Those from files; they bind the symbols of their shapes.
  for (const std::string& argument : arguments.inputs) {
    const auto [name, value] = split_assignment(argument, "--input");
    size_t index = 0;
    while (index < ids.size() && model.input_names[index] != name && model.graph.value(ids[index]).name != name) ++index;
    FL_REQUIRE(index < ids.size(), "--input {}: the model has no input '{}'; its inputs are {}", argument, name,
               fmt::join(model.input_names, ", "));
    if (value == "random") continue;
    inputs[index] = read_tensor(value);
    const op::TensorType& type = model.graph.type(ids[index]);
    if (type.rank() != inputs[index].rank()) continue;   // running reports it with all its words
    for (size_t d = 0; d < type.shape.size(); ++d)
      if (type.shape[d].is_symbol()) sizes.emplace(type.shape[d].name(), inputs[index].dims()[d]);
  }

  // 2. The others, random.
  std::set<std::string> used;
  for (size_t i = 0; i < ids.size(); ++i) {
    const op::TensorType& type = model.graph.type(ids[i]);
    for (const sym::Expr& size : type.shape) sym::collect_symbols(size, used);
    if (inputs[i].valid()) continue;
    Dims dims;
    for (const sym::Expr& size : type.shape) {
      for (const std::string& symbol : sym::symbols_of(size)) {
        if (sizes.count(symbol) != 0) continue;
        sizes[symbol] = smallest_size(model.graph, symbol);
        fmt::print(stderr, "fuseloom: dimension '{}' is taken as {}; --dim {}=N changes that\n", symbol, sizes[symbol], symbol);
      }
      dims.push_back(sym::evaluate(size, sizes));
    }
    inputs[i] = random_tensor(type.dtype, std::move(dims), arguments.seed + i);
  }
  for (const auto& [name, size] : parse_dims(arguments.dims, "--dim"))
    FL_REQUIRE(used.count(name) != 0, "--dim {}={}: no input has a dimension of that name; there are: {}", name, size, fmt::join(used, ", "));
  return inputs;
}

std::map<std::string, int64_t> given_dims(const ModelArguments& arguments) { return parse_dims(arguments.dims, "--dim"); }

compile::Compiled make_executable(const Model& model, const ModelArguments& arguments, std::span<const Tensor> inputs) {
  if (model.archive == nullptr) return compile::compile(model.graph.clone(), make_options(arguments, model, inputs));
  const auto start = std::chrono::steady_clock::now();
  compile::Compiled loaded;
  loaded.executable = model.archive->load(archive_options(arguments));
  compile::Report& report = loaded.report;
  report.load_seconds = report.total_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.kernels = program::launch_count(loaded.executable->program());
  report.distinct_kernels = loaded.executable->program().kernels.size();
  report.from_cache = true;
  return loaded;
}

std::shared_ptr<run::CudaDevice> open_device(const std::string& name) {
  if (name == "cuda-host") return run::CudaDevice::open(run::host_driver());
  int32_t index = -1;
  const char* const end = name.data() + name.size();
  const bool numbered = name.rfind("cuda:", 0) == 0 && std::from_chars(name.data() + 5, end, index).ptr == end && index >= 0;
  FL_REQUIRE(numbered, "device {}: expected cpu, cuda, cuda:N or cuda-host (CUDA's code on the cpu)", name);
  return run::CudaDevice::open(run::load_cuda_driver(), index);
}

int64_t library_calls(const run::Executable& executable, std::span<const Tensor> inputs) {
  executable.set_profiling(true);
  (void)executable.run(inputs);
  executable.set_profiling(false);
  const run::Profile profile = executable.profile();
  return std::count_if(profile.kernels.begin(), profile.kernels.end(), [](const run::KernelStatistics& kernel) { return kernel.library; });
}

compile::Options make_options(const ModelArguments& arguments, const Model& model, std::span<const Tensor> inputs) {
  const std::optional<build::Isa> isa = build::parse_isa(arguments.isa);
  FL_REQUIRE(isa.has_value(), "--isa {}: expected native, baseline, avx2 or avx512", arguments.isa);
  compile::Options options{.fuse = !arguments.no_fuse, .isa = *isa, .threads = arguments.threads};
  if (arguments.device != "cpu") {
    options.device = program::Device::Cuda;
    // "cuda": the driver's first, opened when it is needed.
    if (arguments.device != "cuda") options.cuda_device = open_device(arguments.device);
  }
  options.run.graphs = arguments.graphs;
  options.run.tf32 = arguments.tf32;
  options.run.products = !arguments.no_library;
  options.run.synchronous = arguments.poison;
  if (!inputs.empty()) options.hint = graph::bind_symbols(model.graph, inputs);
  options.run.poison = arguments.poison;
  if (arguments.has_cache_dir) options.cache_dir = arguments.cache_dir;
  return options;
}

}  // namespace fuseloom::tool
