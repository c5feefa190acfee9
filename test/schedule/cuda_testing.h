// Runs what is lowered for CUDA on the host, statement by statement as the kernels' semantics say, and compares with the oracle.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "emit/interpreter.h"
#include "graph/evaluate.h"
#include "graph/pass/pass.h"
#include "graph/text.h"
#include "program/program.h"
#include "schedule/lower_program.h"

namespace fuseloom::test {

class LoweredInterpreter {
 public:
  explicit LoweredInterpreter(const schedule::LoweredProgram& lowered) : lowered_(lowered) {}

  std::vector<Tensor> run(const graph::Graph& graph, std::span<const Tensor> inputs) {
    const program::Program& program = lowered_.program;
    symbols_ = graph::bind_symbols(graph, inputs);
    buffers_.resize(program.buffers.size());
    for (size_t b = 0; b < buffers_.size(); ++b) {
      const program::Buffer& buffer = program.buffers[b];
      if (buffer.kind == program::BufferKind::Input) buffers_[b] = inputs[static_cast<size_t>(buffer.index)].to_contiguous();
      if (buffer.kind == program::BufferKind::Constant) buffers_[b] = program.constants[static_cast<size_t>(buffer.index)];
    }
    for (const std::vector<program::Line>* lines : {&program.init, &program.lines}) {
      for (const program::Line& line : *lines) std::visit([&](const auto& what) { execute(what); }, line.what);
    }
    std::vector<Tensor> outputs;
    for (const program::Output& output : program.outputs) {
      Tensor& whole = tensor(output.buffer);
      if (!output.strides) {
        outputs.push_back(whole.reshaped(dims(output.type.shape)));
        continue;
      }
      char* data = static_cast<char*>(whole.data()) + eval(output.offset) * dtype_bytes(output.type.dtype);
      outputs.push_back(Tensor::borrow(output.type.dtype, dims(output.type.shape), dims(*output.strides), data).contiguous_copy());
    }
    return outputs;
  }

 private:
  int64_t eval(const sym::Expr& expr) const { return sym::evaluate(expr, symbols_); }
  Dims dims(const op::Shape& shape) const {
    Dims out;
    for (const sym::Expr& size : shape) out.push_back(eval(size));
    return out;
  }
  Tensor& tensor(program::BufferId id) {
    Tensor& known = buffers_[static_cast<size_t>(id.index)];
    if (known.valid()) return known;
    const program::Buffer& buffer = lowered_.program.buffer(id);
    if (buffer.kind == program::BufferKind::View) {
      char* data = static_cast<char*>(tensor(buffer.base).data()) + eval(buffer.offset) * dtype_bytes(buffer.type.dtype);
      return known = Tensor::borrow(buffer.type.dtype, dims(buffer.type.shape), data);
    }
    known = Tensor(buffer.type.dtype, dims(buffer.type.shape));
    std::memset(known.data(), 0x7b, static_cast<size_t>(known.bytes()));   // what nobody wrote shows
    return known;
  }
  const kernel::Kernel& kernel(int32_t index) const {
    const std::string& name = lowered_.program.kernels[static_cast<size_t>(index)].name;
    return *std::find_if(lowered_.kernels.begin(), lowered_.kernels.end(), [&](const kernel::Kernel& each) { return each.name == name; });
  }
  void execute(const program::Launch& launch) {
    const auto variant = std::find_if(launch.variants.begin(), launch.variants.end(), [&](const program::Variant& each) { return eval(each.condition) != 0; });
    ASSERT_TRUE(variant != launch.variants.end());
    for (const sym::Expr& blocks : variant->grid) {
      if (eval(blocks) == 0) return;
    }
    std::vector<int64_t> sizes;
    for (const sym::Expr& size : launch.sizes) sizes.push_back(eval(size));
    const kernel::Kernel& chosen = kernel(variant->kernel);
    // The facts a kernel was made under are true whenever it runs.
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto fact = chosen.facts.symbols.find(chosen.symbols[i]);
      if (fact == chosen.facts.symbols.end()) continue;
      EXPECT_TRUE(sizes[i] >= fact->second.low && sizes[i] <= fact->second.high) << chosen.name << ": " << chosen.symbols[i] << " = " << sizes[i];
      EXPECT_TRUE(fact->second.divisor == 0 || sizes[i] % fact->second.divisor == 0) << chosen.name << ": " << chosen.symbols[i] << " = " << sizes[i];
    }
    std::vector<Tensor> arguments;
    for (const program::BufferId id : launch.buffers) arguments.push_back(tensor(id));
    ran_.insert(chosen.name);
    emit::Interpreter(chosen, arguments, sizes).run();
  }
  void execute(const program::Copy& copy) { std::memcpy(tensor(copy.to).data(), tensor(copy.from).data(), static_cast<size_t>(tensor(copy.from).bytes())); }
  void execute(const program::ReadSymbols& read) {
    for (size_t i = 0; i < read.defines.size(); ++i) symbols_[read.defines[i]] = tensor(read.from).int_at(static_cast<int64_t>(i));
  }
  void execute(const program::Assert& check) { EXPECT_NE(eval(check.condition), 0) << check.message; }
  void execute(const program::Call& call) {
    std::vector<Tensor> inputs;
    for (const program::BufferId id : call.inputs) inputs.push_back(id.valid() ? tensor(id) : Tensor());
    const std::vector<Tensor> outputs = op::run_reference(*call.op, inputs, op::concrete(call.attrs, symbols_), static_cast<int64_t>(call.outputs.size()));
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (call.outputs[i].valid()) buffers_[static_cast<size_t>(call.outputs[i].index)] = outputs[i].to_contiguous();
    }
  }
  template <class Other>
  void execute(const Other&) {
    FAIL() << "a line that this interpreter does not know";
  }

  const schedule::LoweredProgram& lowered_;
  graph::SymbolValues symbols_;
  std::vector<Tensor> buffers_;

 public:
  std::set<std::string> ran_;                    // names of the kernels that ran
};

inline schedule::LoweredProgram lower_for_cuda(graph::Graph& graph, const schedule::CudaTarget& target = {}) {
  graph::decompose(graph);
  graph::canonicalize(graph);
  graph::merge_common_subexpressions(graph);
  graph::remove_dead_nodes(graph);
  schedule::LowerOptions options;
  options.cuda = target;
  schedule::LoweredProgram lowered = schedule::lower_program(graph, options);
  program::verify(lowered.program);
  return lowered;
}

// The largest difference, relative to the tensor's scale, that rounding explains.
inline double tolerance(DType dtype) {
  switch (dtype) {
    case DType::F16: return 2e-3;
    case DType::BF16: return 1.6e-2;
    case DType::F32: return 2e-5;
    case DType::F64: return 1e-12;
    default: return 0;
  }
}

inline std::string first_difference(const Tensor& expected, const Tensor& got, double rounding = 0) {
  if (expected.dtype() != got.dtype() || expected.dims() != got.dims()) return expected.type_string() + " expected, got " + got.type_string();
  double scale = 0;
  for (int64_t i = 0; i < expected.count(); ++i) {
    if (std::isfinite(expected.at(i))) scale = std::max(scale, std::abs(expected.at(i)));
  }
  for (int64_t i = 0; i < expected.count(); ++i) {
    const double e = expected.at(i), g = got.at(i);
    if ((std::isnan(e) && std::isnan(g)) || e == g) continue;
    if (!(std::abs(e - g) <= std::max(rounding, tolerance(expected.dtype())) * scale)) return fmt::format("element {}: {} expected, got {}", i, e, g);
  }
  return "";
}

// Returns the names of the kernels that ran. `rounding` counts where it is larger than the rounding of a result's own type.
inline std::set<std::string> expect_cuda_agrees(const graph::Graph& source, std::span<const Tensor> inputs, const schedule::CudaTarget& target = {}, double rounding = 0) {
  const std::vector<Tensor> expected = graph::evaluate(source, inputs);
  graph::Graph graph = source.clone();
  const schedule::LoweredProgram lowered = lower_for_cuda(graph, target);
  LoweredInterpreter interpreter(lowered);
  const std::vector<Tensor> got = interpreter.run(graph, inputs);
  EXPECT_EQ(got.size(), expected.size());
  for (size_t o = 0; o < std::min(got.size(), expected.size()); ++o) {
    std::string kernels;
    for (const kernel::Kernel& kernel : lowered.kernels) {
      if (interpreter.ran_.count(kernel.name) != 0) kernels += kernel::to_string(kernel);
    }
    EXPECT_EQ(first_difference(expected[o], got[o], is_float(expected[o].dtype()) ? rounding : 0), "") << "output " << o << "\n" << graph::to_string(graph) << lowered.explanation << kernels;
  }
  return interpreter.ran_;
}

inline std::set<std::string> expect_cuda_agrees(std::string_view text, std::span<const Tensor> inputs, const schedule::CudaTarget& target = {}) {
  return expect_cuda_agrees(graph::parse_graph(text, op::standard_ops()), inputs, target);
}

// A tensor of numbers between -2 and 2 that depends on the seed only.
inline Tensor numbers(DType dtype, Dims dims, uint64_t seed) {
  Tensor tensor(dtype, std::move(dims));
  for (int64_t i = 0; i < tensor.count(); ++i) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    const double unit = static_cast<double>(seed >> 40) / static_cast<double>(1 << 24);
    tensor.set(i, dtype == DType::Bool ? static_cast<double>(unit > 0.5) : is_float(dtype) ? unit * 4 - 2 : std::floor(unit * 9) - (is_unsigned_int(dtype) ? 0 : 4));
  }
  return tensor;
}

}  // namespace fuseloom::test
