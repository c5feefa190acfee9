#include "schedule/lower_program.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "schedule/axis_plan.h"
#include "schedule/library_product.h"
#include "schedule/lower_cuda.h"
#include "schedule/lower_recurrence.h"
#include "schedule/read.h"
#include "schedule/share_kernels.h"

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using program::BufferId;
using program::BufferKind;
using sym::Expr;

namespace {

class ProgramLowering {
 public:
  ProgramLowering(const Graph& graph, const LowerOptions& options, LoweredProgram& out, std::set<std::string>& kernel_names)
      : graph_(graph), options_(options), out_(out), kernel_names_(kernel_names) {}

  program::Program run(Grouping* keep) {
    program_.name = graph_.name();
    program_.device = options_.cuda ? program::Device::Cuda : program::Device::Cpu;
    program_.facts = graph_.facts();
    program_.outer_symbols = graph_.outer_symbols();
    for (const auto& [symbol, range] : graph_.facts().symbols) {
      FL_SUPPORTED(symbol.back() != '_', "the size '{}' ends in an underscore, which is reserved for loop axes; rename it", symbol);
    }
    for (const ValueId id : graph_.inputs()) {
      const graph::Value& value = graph_.value(id);
      program_.input_names.push_back(value.name);
      program_.input_types.push_back(value.type);
      buffers_[id] = program_.add_buffer({.name = value.name, .kind = BufferKind::Input, .type = value.type, .index = value.output_index});
    }
    GroupOptions grouping_options = options_.grouping;
    grouping_options.spare_bytes = options_.cuda.has_value();
    const Grouping grouping = group_nodes(graph_, grouping_options);
    out_.explanation += "graph " + graph_.name() + "\n" + explain(graph_, grouping);
    std::set<int> done;                          // with a group before them
    for (const Group& group : grouping.groups) {
      if (done.count(group.id) != 0) continue;
      switch (group.kind) {
        case GroupKind::Loops:
          if (options_.cuda) {
            if (const std::optional<RowColumnPair> pair = pair_with_later(grouping, group, done)) {
              lower_kernels(pair->merged, lower_pair(graph_, *pair, *options_.cuda, options_.hint));
              break;
            }
          }
          [[fallthrough]];
        case GroupKind::Contraction:
        case GroupKind::Scan:
          if (!as_view_of_input(group)) lower_kernels(group, lowered_group(group));
          break;
        case GroupKind::Call: lower_call(group); break;
        case GroupKind::Alias: lower_alias(group); break;
        case GroupKind::Control: lower_control(group); break;
      }
    }
    for (const ValueId id : graph_.outputs()) add_output(id);
    program::plan_memory(program_, options_.hint);
    if (keep != nullptr) *keep = grouping;
    return std::move(program_);
  }

 private:
  BufferId buffer(ValueId id) {
    if (!id.valid()) return {};
    const auto known = buffers_.find(id);
    if (known != buffers_.end()) return known->second;
    const graph::Value& value = graph_.value(id);
    program::Buffer made{.name = value.name, .kind = BufferKind::Temporary, .type = value.type};
    if (const Tensor* constant = graph_.constant(id)) {
      made.kind = BufferKind::Constant;
      made.index = static_cast<int32_t>(program_.constants.size());
      program_.constants.push_back(*constant);
    }
    return buffers_[id] = program_.add_buffer(std::move(made));
  }

  program::Line line_of(const Group& group) const {
    program::Line line;
    for (const NodeId id : group.nodes) {
      line.nodes.push_back(id.index);
      const Node& node = graph_.node(id);
      const std::string& origin = node.origin.empty() ? std::string(node.op->name) : node.origin;
      if (line.origin.size() < 160) line.origin += (line.origin.empty() ? "" : ", ") + origin;
    }
    return line;
  }

  // ---- kernels

  program::Launch launch_of(const LoweredKernel& lowered, const std::vector<BufferId>& prepared, const std::vector<BufferId>& partials, BufferId check) {
    program::Launch launch;
    for (const LoweredVariant& each : lowered.variants) {
      program::Variant variant{.condition = each.condition, .kernel = kernel_of(each.kernel), .extent = sym::substitute(each.extent, lowered.sizes)};
      for (size_t d = 0; d < 3; ++d) variant.grid[d] = sym::substitute(each.grid[d], lowered.sizes);
      variant.block = each.block;
      launch.variants.push_back(std::move(variant));
    }
    for (const Argument& argument : lowered.arguments) {
      switch (argument.kind) {
        case Argument::Kind::Value: launch.buffers.push_back(buffer(argument.value)); break;
        case Argument::Kind::Prepared: launch.buffers.push_back(prepared[static_cast<size_t>(std::max(0, argument.prepared))]); break;
        case Argument::Kind::Partial: launch.buffers.push_back(partials[static_cast<size_t>(argument.partial)]); break;
        case Argument::Kind::Check: launch.buffers.push_back(check); break;
      }
    }
    for (const std::string& symbol : lowered.variants[0].kernel.symbols) launch.sizes.push_back(sym::substitute(Expr::symbol(symbol), lowered.sizes));
    launch.work = lowered.work;
    launch.bytes = lowered.bytes;
    return launch;
  }

  // The program's index of a kernel; equal kernels are kept once.
  int32_t kernel_of(const kernel::Kernel& kernel) {
    if (kernel_names_.insert(kernel.name).second) {
      kernel::verify(kernel);
      out_.kernels.push_back(kernel);
    }
    return kernel_index(kernel.name);
  }
  int32_t kernel_index(const std::string& name) {
    for (size_t i = 0; i < program_.kernels.size(); ++i) {
      if (program_.kernels[i].name == name) return static_cast<int32_t>(i);
    }
    program_.kernels.push_back({name});
    return static_cast<int32_t>(program_.kernels.size()) - 1;
  }

  LoweredGroup lowered_group(const Group& group) const {
    return options_.cuda ? lower_group(graph_, group, *options_.cuda, options_.hint) : lower_group(graph_, group, options_.target, options_.hint);
  }
  // A later group that goes with this one over the same data, when all it reads is there already.
  std::optional<RowColumnPair> pair_with_later(const Grouping& grouping, const Group& group, std::set<int>& done) const {
    const auto there = [&](const Group& other) {
      return std::all_of(other.inputs.begin(), other.inputs.end(), [&](ValueId value) {
        const int owner = grouping.owner[static_cast<size_t>(value.index)];
        return owner < 0 || (owner != group.id && (owner < group.id || done.count(owner) != 0));
      });
    };
    for (size_t later = static_cast<size_t>(group.id) + 1; later < grouping.groups.size(); ++later) {
      const Group& other = grouping.groups[later];
      if (done.count(other.id) != 0 || other.kind != GroupKind::Loops || !there(other)) continue;
      std::optional<RowColumnPair> pair = pair_rows_with_columns(graph_, group, other);
      if (!pair) pair = pair_rows_with_columns(graph_, other, group);
      if (!pair) continue;
      done.insert(other.id);
      return pair;
    }
    return std::nullopt;
  }

  void lower_kernels(const Group& group, const LoweredGroup& lowered) {
    std::vector<BufferId> prepared;
    for (const Prepared& each : lowered.prepared) {
      prepared.push_back(program_.add_buffer({.kind = BufferKind::Prepared, .type = each.type}));
      program::Line line = line_of(group);
      line.what = launch_of(each.pack, {prepared.back()}, {}, {});
      program_.init.push_back(std::move(line));
    }
    std::vector<BufferId> partials;
    for (const op::TensorType& type : lowered.partials) partials.push_back(program_.add_buffer({.kind = BufferKind::Temporary, .type = type}));
    BufferId check;
    std::string check_message;
    for (const LoweredKernel& kernel : lowered.kernels) {
      if (check_message.empty()) check_message = kernel.check_message;
    }
    if (!check_message.empty()) {
      // An index outside its range is reported after the kernel: [0] becomes nonzero, [1] is the index.
      const op::TensorType pair{DType::I64, {2}};
      if (!zeros_.valid()) {
        zeros_ = program_.add_buffer({.kind = BufferKind::Constant, .type = pair, .index = static_cast<int32_t>(program_.constants.size())});
        program_.constants.push_back(Tensor(DType::I64, {2}));
      }
      check = program_.add_buffer({.kind = BufferKind::Temporary, .type = pair});
      program_.lines.push_back(program::Line{.what = program::Copy{zeros_, check}, .nodes = {}, .origin = check_message});
    }
    for (const LoweredKernel& kernel : lowered.kernels) {
      program::Line line = line_of(group);
      program::Launch launch = launch_of(kernel, prepared, partials, check);
      // An index error must leave the inputs as they were. A value that turned out not to be read (a piece of a view
      // that no position falls into) is no buffer of the launch.
      if (!check.valid() && lowered.kernels.size() == 1) {
        const auto used = [&](BufferId id) { return std::find(launch.buffers.begin(), launch.buffers.end(), id) != launch.buffers.end(); };
        for (const auto& [written, read] : in_place_pairs(group)) {
          if (used(written) && used(read)) launch.in_place.emplace_back(written, read);
        }
      }
      if (options_.cuda && options_.grouping.library_products && !check.valid() && lowered.kernels.size() == 1) add_product(group, kernel, launch);
      line.what = std::move(launch);
      program_.lines.push_back(std::move(line));
      ++out_.launches;
    }
    out_.nodes += group.nodes.size();
    out_.explanation += fmt::format("schedule of group {}: {} as {}\n", group.id, lowered.choice.text(), lowered.kernels.back().variants[0].kernel.name);
    for (const LoweredKernel& kernel : lowered.kernels) {
      for (const LoweredVariant& variant : kernel.variants) {
        if (!variant.choice.empty()) out_.explanation += fmt::format("  {}: {} when {}\n", variant.kernel.name, variant.choice, sym::to_string(variant.condition));
      }
    }
    if (check.valid()) {
      const std::string outside = fmt::format("outside{}_", checks_), index = fmt::format("index{}_", checks_);
      ++checks_;
      program_.lines.push_back(program::Line{.what = program::ReadSymbols{check, {outside, index}}, .nodes = {}, .origin = check_message});
      // outside == 0, in words that mention the index, so that the message shows it: max(i, -1 - i) is never negative.
      const Expr at = Expr::symbol(index);
      program_.lines.push_back(program::Line{.what = program::Assert{sym::le(Expr::symbol(outside), sym::min(0, sym::max(at, -at - 1))),
                                                                      check_message + ": an index is outside its dimension"},
                                             .nodes = {}, .origin = check_message});
    }
  }

  void add_product(const Group& group, const LoweredKernel& kernel, program::Launch& launch) {
    const std::optional<LibraryProduct> found = library_product(graph_, group);
    if (!found) return;
    const auto argument_of = [&](ValueId value) {
      for (size_t i = 0; i < kernel.arguments.size(); ++i) {
        if (kernel.arguments[i].kind == Argument::Kind::Value && kernel.arguments[i].value == value) return static_cast<int32_t>(i);
      }
      return -1;
    };
    program::MatrixProduct product = found->product;
    product.left.buffer = argument_of(found->left);
    product.right.buffer = argument_of(found->right);
    product.result.buffer = argument_of(found->result);
    if (found->bias.valid()) product.bias = argument_of(found->bias);
    FL_CHECK(product.left.buffer >= 0 && product.right.buffer >= 0 && product.result.buffer >= 0 && (product.bias >= 0) == found->bias.valid(),
             "group {}: the kernel does not take the operands of its product", group.id);
    product.workspace = program_.add_buffer({.kind = BufferKind::Temporary, .type = {DType::U8, {kProductWorkspaceBytes}}});
    launch.product = std::move(product);
    launch.in_place.clear();             // a library's results do not lie over its operands
    ++out_.products;
    out_.explanation += fmt::format("group {}: a library may do it: a product{}{}\n", group.id, found->bias.valid() ? " with a bias" : "",
                                    found->product.activation == program::Activation::None ? "" : fmt::format(", then {}", program::activation_name(found->product.activation)));
  }

  // An output may take the memory of an input of the same size and type that the kernel reads exactly where it writes.
  std::vector<std::pair<BufferId, BufferId>> in_place_pairs(const Group& group) {
    std::vector<std::pair<BufferId, BufferId>> pairs;
    if (group.kind == GroupKind::Scan || group.kind == GroupKind::Call) return pairs;
    for (const Axis& axis : group.axes) {
      if (axis.reduced) return pairs;
    }
    if (group.kind == GroupKind::Loops && !group.local_axes.empty()) return pairs;
    std::set<ValueId> operands;
    if (group.kind == GroupKind::Contraction) collect_operands(group, group.contraction, operands);
    for (const ValueId output : group.outputs) {
      const op::TensorType& type = graph_.type(output);
      const Expr written = linear_index(type.shape, group.uses.at(output)[0].index);
      for (const ValueId input : group.inputs) {
        const std::vector<Use>& uses = group.uses.at(input);
        if (uses.size() != 1 || !uses[0].guards.empty() || operands.count(input) != 0 || graph_.constant(input) != nullptr) continue;
        const op::TensorType& other = graph_.type(input);
        if (other.dtype != type.dtype || uses[0].index.size() != other.shape.size()) continue;
        if (sym::prove_equal(op::count_of(other.shape), op::count_of(type.shape), graph_.facts()) != sym::Proof::Yes) continue;
        if (linear_index(other.shape, uses[0].index) == written) pairs.emplace_back(buffer(output), buffer(input));
      }
    }
    return pairs;
  }
  // Everything the contraction's operands read: tiles of it are read after other tiles are written.
  void collect_operands(const Group& group, NodeId id, std::set<ValueId>& out) const {
    for (const ValueId input : graph_.node(id).inputs) {
      if (!input.valid() || !out.insert(input).second) continue;
      const NodeId producer = graph_.value(input).producer;
      if (producer.valid() && std::find(group.nodes.begin(), group.nodes.end(), producer) != group.nodes.end()) collect_operands(group, producer, out);
    }
  }

  // ---- views that leave as they came: a result that is a strided window on an input costs no kernel (R6)
  bool as_view_of_input(const Group& group) {
    if (group.kind != GroupKind::Loops || group.nodes.size() != 1) return false;
    const Node& node = graph_.node(group.nodes[0]);
    const ValueId value = node.outputs[0];
    if (node.op->family != op::Family::View || !node.op->index_map || node.inputs.size() != 1) return false;
    const graph::Value& source = graph_.value(node.inputs[0]);
    if (source.producer.valid() || read_by_nodes(value)) return false;
    const op::TensorType& type = graph_.type(value);
    Index index;
    std::set<std::string> names;
    for (size_t d = 0; d < type.shape.size(); ++d) {
      const std::string name = fmt::format("v{}", d);
      names.insert(name);
      index.push_back(type.shape[d].is_const(1) ? Expr(0) : Expr::symbol(name));
    }
    const std::vector<op::TensorType> inputs{source.type};
    const std::vector<op::IndexPiece> pieces = node.op->index_map({.inputs = inputs, .output = type, .attrs = node.attrs}, index);
    if (pieces.size() != 1 || !pieces[0].guards.empty()) return false;
    const Expr address = linear_index(source.type.shape, pieces[0].indices);
    op::Shape strides;
    sym::Substitution zero;
    for (const std::string& name : names) zero[name] = 0;
    Expr linear = sym::substitute(address, zero);
    const Expr offset = linear;
    for (size_t d = 0; d < index.size(); ++d) {
      if (!index[d].is_symbol()) {
        strides.emplace_back(0);
        continue;
      }
      const Expr step = sym::substitute(address, {{index[d].name(), index[d] + 1}}) - address;
      for (const std::string& symbol : sym::symbols_of(step)) {
        if (names.count(symbol) != 0) return false;
      }
      strides.push_back(step);
      linear = linear + step * index[d];
    }
    if (!(linear == address)) return false;
    views_[value] = program::Output{.name = "", .buffer = buffer(node.inputs[0]), .type = type, .strides = strides, .offset = offset};
    return true;
  }
  bool read_by_nodes(ValueId value) {
    if (users_.empty()) users_ = graph_.users();
    return !users_[static_cast<size_t>(value.index)].empty();
  }

  // ---- whole nodes

  static std::vector<std::string> defines_of(const Node& node) {
    std::vector<std::string> names;
    if (!node.attrs.has("defines")) return names;
    for (const Expr& symbol : node.attrs.shape("defines")) names.push_back(symbol.name());
    return names;
  }

  void lower_call(const Group& group) {
    const Node& node = graph_.node(group.nodes[0]);
    program::Line line = line_of(group);
    ++out_.nodes;
    if (node.op->name == "require") {
      // Checks, and the value goes on as what it is.
      for (const Expr& condition : node.attrs.shape("conditions")) {
        line.what = program::Assert{condition, fmt::format("{}: {}", node.op->name, node.attrs.text("message"))};
        program_.lines.push_back(std::move(line));
        line = line_of(group);
      }
      lower_alias(group);
      return;
    }
    if (node.op->name == "bind_symbols") {
      line.what = program::ReadSymbols{buffer(node.inputs[0]), defines_of(node)};
      program_.lines.push_back(std::move(line));
      if (!read_by_nodes(node.outputs[0]) && !is_output(node.outputs[0])) return;
      line = line_of(group);
    }
    if (node.op->kernel && !options_.cuda) {
      lower_source_kernel(group.nodes[0], std::move(line));
      return;
    }
    if (!options_.cuda && can_lower_recurrence(graph_, group)) {
      lower_kernels(group, lower_recurrence(graph_, group, options_.target));
      --out_.nodes;   // counted by both
      return;
    }
    program::Call call{.op = node.op, .attrs = node.attrs};
    for (const ValueId input : node.inputs) call.inputs.push_back(buffer(input));
    for (const ValueId output : node.outputs) {
      call.outputs.push_back(read_by_nodes(output) || is_output(output) || node.attrs.has("defines") ? buffer(output) : BufferId{});
    }
    if (node.op->name != "bind_symbols") call.defines = defines_of(node);
    line.what = std::move(call);
    program_.lines.push_back(std::move(line));
  }
  void lower_source_kernel(NodeId id, program::Line line) {
    const Node& node = graph_.node(id);
    SourceLaunch lowered = schedule::lower_source_kernel(graph_, id, options_.hint, options_.tuned);
    program::Launch launch{.variants = std::move(lowered.variants), .sizes = std::move(lowered.sizes), .work = lowered.work, .bytes = lowered.bytes};
    for (size_t v = 0; v < launch.variants.size(); ++v) {
      const op::SourceKernelInstance& kernel = lowered.kernels[v];
      if (kernel_names_.insert(kernel.name).second) out_.source_kernels.push_back(kernel);
      launch.variants[v].kernel = kernel_index(kernel.name);
      out_.explanation += fmt::format("kernel of op {}: configuration {} as {}\n", node.op->name, kernel.configuration, kernel.name);
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      BufferId read = buffer(node.inputs[i]);
      if (std::find(lowered.mutated.begin(), lowered.mutated.end(), i) != lowered.mutated.end()) {
        const BufferId copy = program_.add_buffer({.kind = BufferKind::Temporary, .type = graph_.type(node.inputs[i])});
        program_.lines.push_back(program::Line{.what = program::Copy{read, copy}, .nodes = {}, .origin = fmt::format("{}: input {} may be written to", line.origin, i)});
        read = copy;
      }
      launch.buffers.push_back(read);
    }
    for (const ValueId output : node.outputs) launch.buffers.push_back(buffer(output));
    line.what = std::move(launch);
    program_.lines.push_back(std::move(line));
    ++out_.launches;
  }
  bool is_output(ValueId value) const {
    return std::find(graph_.outputs().begin(), graph_.outputs().end(), value) != graph_.outputs().end();
  }

  void lower_alias(const Group& group) {
    const Node& node = graph_.node(group.nodes[0]);
    const ValueId value = node.outputs[0];
    buffers_[value] = program_.add_buffer({.name = graph_.value(value).name, .kind = BufferKind::View, .type = graph_.type(value), .base = buffer(node.inputs[0])});
  }

  std::unique_ptr<program::Program> nested(const Graph& graph) {
    LowerOptions options = options_;
    return std::make_unique<program::Program>(ProgramLowering(graph, options, out_, kernel_names_).run(nullptr));
  }

  void lower_control(const Group& group) {
    const Node& node = graph_.node(group.nodes[0]);
    program::Line line = line_of(group);
    std::vector<BufferId> inputs, outputs;
    for (const ValueId input : node.inputs) inputs.push_back(buffer(input));
    for (const ValueId output : node.outputs) outputs.push_back(buffer(output));
    if (node.op->name == "if") {
      program::If branch{.condition = inputs[0], .then = nested(*node.subgraphs[0]), .otherwise = nested(*node.subgraphs[1])};
      branch.inputs.assign(inputs.begin() + 1, inputs.end());
      branch.outputs = outputs;
      branch.defines = defines_of(node);
      line.what = std::move(branch);
    } else {
      program::While loop{.body = nested(*node.subgraphs[0]), .trip_count = inputs[0], .condition = inputs[1]};
      loop.inputs.assign(inputs.begin() + 2, inputs.end());
      loop.carried = static_cast<int32_t>(node.attrs.integer("carried"));
      loop.scans = static_cast<int32_t>(node.attrs.integer("scans"));
      loop.outputs = outputs;
      loop.defines = defines_of(node);
      line.what = std::move(loop);
    }
    program_.lines.push_back(std::move(line));
    ++out_.nodes;
  }

  void add_output(ValueId id) {
    const auto view = views_.find(id);
    if (view != views_.end()) {
      program::Output output = view->second;
      output.name = graph_.value(id).name;
      program_.outputs.push_back(std::move(output));
      return;
    }
    const BufferId held = buffer(id);
    program::Output output{.name = graph_.value(id).name, .buffer = held, .type = graph_.type(id)};
    // A reshape of an input leaves as a view of it.
    const program::Buffer& as_buffer = program_.buffer(held);
    if (as_buffer.kind == BufferKind::View) {
      const BufferId storage = program::storage_of(program_, held);
      if (program_.buffer(storage).kind == BufferKind::Input) {
        output.buffer = storage;
        output.strides = op::strides_of(output.type.shape);
      }
    }
    program_.outputs.push_back(std::move(output));
  }

  const Graph& graph_;
  const LowerOptions& options_;
  LoweredProgram& out_;
  std::set<std::string>& kernel_names_;
  program::Program program_;
  std::map<ValueId, BufferId> buffers_;
  std::map<ValueId, program::Output> views_;
  std::vector<std::vector<NodeId>> users_;
  BufferId zeros_;
  int checks_ = 0;
};

}  // namespace

LoweredProgram lower_program(const Graph& graph, const LowerOptions& options) {
  LoweredProgram out;
  std::set<std::string> kernel_names;
  program::Program lowered = ProgramLowering(graph, options, out, kernel_names).run(&out.grouping);
  out.program = std::move(lowered);
  for (const auto& [old, name] : share_kernels(out.program, out.kernels)) {
    for (size_t at = 0; (at = out.explanation.find(old, at)) != std::string::npos; at += name.size()) out.explanation.replace(at, old.size(), name);
  }
  return out;
}

}  // namespace fuseloom::schedule
