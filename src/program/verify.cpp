// The invariants at the head of program.h, checked line by line. A Launch does not say which of its buffers it writes,
// so the first one that names a Temporary counts as its writer; all other lines are exact.
#include <algorithm>
#include <set>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "program/line.h"
#include "program/program.h"

namespace fuseloom::program {
namespace {

using Symbols = std::set<std::string>;

void collect_symbols(const op::Shape& shape, Symbols& out) {
  for (const sym::Expr& size : shape) sym::collect_symbols(size, out);
}

bool has_bare_size(const op::TensorType& type, const std::string& symbol) {
  return std::any_of(type.shape.begin(), type.shape.end(), [&](const sym::Expr& size) { return size.is_symbol() && size.name() == symbol; });
}

std::string kind_of(const Program& program, const Line& line) {
  return std::visit(Overloaded{
                        [&](const Launch& launch) {
                          const int32_t kernel = launch.variants.empty() ? -1 : launch.variants.back().kernel;
                          const bool known = kernel >= 0 && kernel < static_cast<int32_t>(program.kernels.size());
                          return "launch " + (known ? program.kernels[static_cast<size_t>(kernel)].name : std::string("?"));
                        },
                        [](const Call& call) { return "call " + (call.op != nullptr ? call.op->name : std::string("?")); },
                        [](const Copy&) { return std::string("copy"); },
                        [](const ReadSymbols&) { return std::string("read"); },
                        [](const Assert&) { return std::string("assert"); },
                        [](const If&) { return std::string("if"); },
                        [](const While&) { return std::string("while"); },
                    },
                    line.what);
}

class Verifier {
 public:
  Verifier(const Program& program, std::string path) : program_(program), path_(std::move(path)), where_(path_) {}

  // `outer`: the symbols that the enclosing program has bound here.
  void run(const Symbols& outer) {
    verify_head(outer);
    verify_buffers();
    for (size_t i = 0; i < program_.init.size(); ++i) {
      where_ = fmt::format("{} > init line {} ({})", path_, i, kind_of(program_, program_.init[i]));
      verify_init(program_.init[i]);
    }
    where_ = path_;
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      if (program_.buffers[i].kind == BufferKind::Prepared && !written_[i]) fail("no init line writes %{}", program_.buffers[i].name);
    }
    for (size_t i = 0; i < program_.lines.size(); ++i) {
      const Line& line = program_.lines[i];
      where_ = fmt::format("{} > line {} ({})", path_, i, kind_of(program_, line));
      std::visit([&](const auto& what) { verify_line(what); }, line.what);
    }
    where_ = path_;
    for (const Output& output : program_.outputs) verify_output(output);
    verify_placement_order();
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InternalError(where_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  const Buffer& buffer(BufferId id) const { return program_.buffer(id); }
  std::string typed(BufferId id) const { return fmt::format("%{}: {}", buffer(id).name, op::to_string(buffer(id).type)); }

  // ---- symbols
  // Expressions are shared widely, and what is bound stays bound: each is looked at once. `of`: the words for what it is the size of.
  template <class Words>
  void need(const sym::Expr& expr, const Words& of) {
    if (expr.is_const() || closed_.contains(expr)) return;
    if (expr.is_symbol() && bound_.count(expr.name()) == 0) {
      if constexpr (std::is_invocable_v<Words>) {
        fail("{} uses the symbol {}, which is not bound yet", of(), expr.name());
      } else {
        fail("{} uses the symbol {}, which is not bound yet", of, expr.name());
      }
    }
    for (const sym::Expr& arg : expr.args()) need(arg, of);
    closed_.insert(expr);
  }
  template <class Words>
  void need(const op::Shape& shape, const Words& of) {
    for (const sym::Expr& size : shape) need(size, of);
  }
  void bind(const std::string& symbol) {
    if (!bound_.insert(symbol).second) fail("defines {}, which is already bound", symbol);
  }
  // Symbols that a line takes from the sizes of its results.
  void bind_from(const std::vector<std::string>& defines, const std::vector<BufferId>& outputs) {
    for (const std::string& symbol : defines) {
      const bool found = std::any_of(outputs.begin(), outputs.end(),
                                     [&](BufferId id) { return id.valid() && has_bare_size(buffer(id).type, symbol); });
      if (!found) fail("defines {}, which is no size of a result", symbol);
      bind(symbol);
    }
  }

  // ---- the head and the buffers
  void verify_head(const Symbols& outer) {
    if (program_.input_names.size() != program_.input_types.size())
      fail("{} input names for {} input types", program_.input_names.size(), program_.input_types.size());
    for (const std::string& symbol : program_.outer_symbols) {
      if (outer.count(symbol) == 0) fail("the enclosing program has not bound the outer symbol {}", symbol);
      bound_.insert(symbol);
    }
    // Bare sizes bind their symbol. A compound one is solved when that is the only unknown in it, and checked otherwise.
    Symbols unknown;
    std::vector<sym::Expr> compound;
    for (const op::TensorType& type : program_.input_types) {
      for (const sym::Expr& size : type.shape) {
        if (size.is_symbol()) {
          bound_.insert(size.name());
        } else if (!size.is_const()) {
          compound.push_back(size);
          sym::collect_symbols(size, unknown);
        }
      }
    }
    for (bool progress = true; progress;) {
      progress = false;
      for (const sym::Expr& size : compound) {
        std::vector<std::string> open;
        for (const std::string& symbol : sym::symbols_of(size)) {
          if (bound_.count(symbol) == 0) open.push_back(symbol);
        }
        if (open.size() != 1 || !sym::solve_for(size, open[0], sym::Expr::symbol("size"), program_.facts)) continue;
        bound_.insert(open[0]);
        progress = true;
      }
    }
    for (const std::string& symbol : unknown) {
      if (bound_.count(symbol) == 0) fail("the sizes of the inputs do not determine the symbol {}", symbol);
    }
    std::unordered_set<std::string> names;
    for (const KernelRef& kernel : program_.kernels) {
      if (kernel.name.empty() || !names.insert(kernel.name).second) fail("the kernel name '{}' is empty or used twice", kernel.name);
    }
  }

  void verify_buffers() {
    written_.assign(program_.buffers.size(), false);
    std::unordered_set<std::string> names;
    std::set<int32_t> inputs;
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      const Buffer& buffer = program_.buffers[i];
      const auto is_part = [](char c) { return c == '_' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
      if (buffer.name.empty() || !std::all_of(buffer.name.begin(), buffer.name.end(), is_part))
        fail("the name '{}' of buffer {} is not made of letters, digits, '_' and '.'", buffer.name, i);
      if (!names.insert(buffer.name).second) fail("two buffers are called %{}", buffer.name);
      switch (buffer.kind) {
        case BufferKind::Input: {
          if (buffer.index < 0 || buffer.index >= static_cast<int32_t>(program_.input_types.size()))
            fail("%{} is input {} of {}", buffer.name, buffer.index, program_.input_types.size());
          if (!inputs.insert(buffer.index).second) fail("%{} is another buffer for input {}", buffer.name, buffer.index);
          const op::TensorType& type = program_.input_types[static_cast<size_t>(buffer.index)];
          if (!(buffer.type == type)) fail("%{} is {}, its input is {}", buffer.name, op::to_string(buffer.type), op::to_string(type));
          break;
        }
        case BufferKind::Constant: verify_constant(buffer); break;
        case BufferKind::Prepared: {
          Symbols symbols;
          collect_symbols(buffer.type.shape, symbols);
          if (!symbols.empty()) fail("%{} is prepared before any run, but its size depends on {}", buffer.name, *symbols.begin());
          break;
        }
        case BufferKind::Temporary: break;
        case BufferKind::View: verify_view(buffer, static_cast<int32_t>(i)); break;
      }
    }
  }

  void verify_constant(const Buffer& buffer) const {
    if (buffer.index < 0 || buffer.index >= static_cast<int32_t>(program_.constants.size()))
      fail("%{} is constant {} of {}", buffer.name, buffer.index, program_.constants.size());
    const Tensor& value = program_.constants[static_cast<size_t>(buffer.index)];
    bool fits = value.valid() && value.dtype() == buffer.type.dtype && value.rank() == buffer.type.rank();
    for (size_t d = 0; fits && d < buffer.type.shape.size(); ++d)
      fits = sym::prove_equal(buffer.type.shape[d], value.dims()[d], program_.facts) != sym::Proof::No;
    if (!fits) fail("%{} is {}, its constant is {}", buffer.name, op::to_string(buffer.type), value.type_string());
  }

  void verify_view(const Buffer& buffer, int32_t index) const {
    if (!buffer.base.valid() || buffer.base.index >= index) fail("the view %{} does not come after its base", buffer.name);
    const Buffer& base = this->buffer(buffer.base);
    if (dtype_bits(base.type.dtype) != dtype_bits(buffer.type.dtype))
      fail("the view %{}: {} has elements of another width than {}", buffer.name, op::to_string(buffer.type), typed(buffer.base));
    const sym::Expr end = buffer.offset + op::count_of(buffer.type.shape);
    if (sym::prove_less_equal(0, buffer.offset, program_.facts) == sym::Proof::No ||
        sym::prove_less_equal(end, op::count_of(base.type.shape), program_.facts) == sym::Proof::No)
      fail("the view %{}: {} at {} reaches beyond {}", buffer.name, op::to_string(buffer.type), sym::to_string(buffer.offset), typed(buffer.base));
  }

  // ---- reads and writes
  void verify_id(BufferId id) const {
    if (!id.valid()) fail("a buffer is missing");
    if (id.index >= static_cast<int32_t>(program_.buffers.size())) fail("buffer {} of {}", id.index, program_.buffers.size());
  }
  void need_sizes(BufferId id) {
    for (BufferId at = id;; at = buffer(at).base) {
      need(buffer(at).type.shape, [&] { return typed(at); });
      if (buffer(at).kind != BufferKind::View) return;
      need(buffer(at).offset, [&] { return "the offset of " + typed(at); });
    }
  }
  std::vector<bool>::reference written(BufferId id) { return written_[static_cast<size_t>(storage_of(program_, id).index)]; }
  BufferKind storage_kind(BufferId id) const { return buffer(storage_of(program_, id)).kind; }

  void read(BufferId id) {
    verify_id(id);
    need_sizes(id);
    if (storage_kind(id) == BufferKind::Temporary && !written(id)) fail("%{} is read before it is written", buffer(id).name);
  }
  void read_all(const std::vector<BufferId>& ids) {
    for (const BufferId id : ids) read(id);
  }
  // After the line's own symbols are bound.
  void write(BufferId id) {
    verify_id(id);
    need_sizes(id);
    if (storage_kind(id) != BufferKind::Temporary) fail("%{} is written, but it is no temporary", buffer(id).name);
    if (written(id)) fail("%{} is written a second time", buffer(id).name);
    written(id) = true;
  }
  void write_all(const std::vector<BufferId>& ids) {
    for (const BufferId id : ids) write(id);
  }
  void need_one_element(BufferId id, DType dtype, std::string_view role) const {
    if (buffer(id).type.dtype != dtype || sym::prove_equal(op::count_of(buffer(id).type.shape), 1, program_.facts) == sym::Proof::No)
      fail("the {} {} is not one {}", role, typed(id), dtype_name(dtype));
  }
  // dtype and rank: sizes are checked when they are known.
  void need_match(const op::TensorType& found, const op::TensorType& expected, std::string_view role) const {
    if (found.dtype != expected.dtype || found.rank() != expected.rank())
      fail("{} is {}, expected {}", role, op::to_string(found), op::to_string(expected));
  }

  // ---- lines
  void verify_variants(const Launch& launch) {
    if (launch.variants.empty()) fail("no variant");
    for (const Variant& variant : launch.variants) {
      if (variant.kernel < 0 || variant.kernel >= static_cast<int32_t>(program_.kernels.size()))
        fail("kernel {} of {}", variant.kernel, program_.kernels.size());
      need(variant.condition, "the condition");
      need(variant.extent, "the extent");
      need(variant.scratch_bytes, "the scratch size");
      for (const sym::Expr& size : variant.grid) need(size, "a size of the grid");
      need(variant.shared_bytes, "the size of the shared memory");
      verify_device(variant);
    }
    if (!launch.variants.back().condition.is_const(1))
      fail("the last variant has the condition {}: nothing runs when it fails", sym::to_string(launch.variants.back().condition));
    for (const sym::Expr& size : launch.sizes) need(size, "a size");
    need(launch.work, "the work estimate");
    need(launch.bytes, "the byte count");
  }
  // A variant says nothing about the other device; the limits are those of every CUDA device.
  void verify_device(const Variant& variant) const {
    const auto is_one = [](const auto& size) { return size == 1; };
    const std::string& name = program_.kernels[static_cast<size_t>(variant.kernel)].name;
    switch (program_.device) {
      case Device::Cpu:
        if (!std::all_of(variant.grid.begin(), variant.grid.end(), [](const sym::Expr& size) { return size.is_const(1); }) ||
            !std::all_of(variant.block.begin(), variant.block.end(), is_one) || !std::all_of(variant.cluster.begin(), variant.cluster.end(), is_one) ||
            !variant.shared_bytes.is_const(0) || variant.cooperative)
          fail("{} has a grid, which kernels of the cpu do not have", name);
        return;
      case Device::Cuda: {
        if (!variant.extent.is_const(1) || !variant.scratch_bytes.is_const(0)) fail("{} has an extent or scratch, which kernels of cuda do not have", name);
        int64_t threads = 1;
        for (size_t d = 0; d < 3; ++d) {
          if (variant.block[d] < 1 || variant.block[d] > (d == 2 ? 64 : 1024)) fail("{} has a block of ({})", name, fmt::join(variant.block, ", "));
          if (variant.cluster[d] < 1 || variant.cluster[d] > 16) fail("{} has a cluster of ({})", name, fmt::join(variant.cluster, ", "));
          threads *= variant.block[d];
        }
        if (threads > 1024) fail("{} has a block of {} threads, expected at most 1024", name, threads);
        return;
      }
    }
  }

  void verify_init(const Line& line) {
    const Launch* launch = std::get_if<Launch>(&line.what);
    if (launch == nullptr) fail("only launches prepare buffers");
    // No inputs yet: nothing is bound.
    Symbols bound = std::exchange(bound_, {});
    std::unordered_set<sym::Expr> closed = std::exchange(closed_, {});
    verify_variants(*launch);
    bound_ = std::move(bound);
    closed_ = std::move(closed);
    bool writes = false;
    for (const BufferId id : launch->buffers) {
      verify_id(id);
      const BufferKind kind = storage_kind(id);
      if (kind != BufferKind::Constant && kind != BufferKind::Prepared) fail("%{} is neither constant nor prepared", buffer(id).name);
      if (kind != BufferKind::Prepared) continue;
      writes = writes || !written(id);
      written(id) = true;
    }
    if (!writes) fail("prepares no buffer");
  }

  void verify_line(const Launch& launch) {
    verify_variants(launch);
    for (const auto& [to, from] : launch.in_place) {
      for (const BufferId id : {to, from}) {
        verify_id(id);
        if (std::find(launch.buffers.begin(), launch.buffers.end(), id) == launch.buffers.end())
          fail("the in-place buffer %{} is none of its buffers", buffer(id).name);
      }
      if (to == from) continue;
      if (storage_kind(to) != BufferKind::Temporary) fail("%{} is written in place, but it is no temporary", buffer(to).name);
      if (written(to)) fail("%{} is written a second time", buffer(to).name);
      const op::TensorType &written_type = buffer(to).type, &read_type = buffer(from).type;
      if (dtype_bits(written_type.dtype) != dtype_bits(read_type.dtype) ||
          sym::prove_equal(op::count_of(written_type.shape), op::count_of(read_type.shape), program_.facts) != sym::Proof::Yes)
        fail("{} cannot take the memory of {}: their sizes may differ", typed(to), typed(from));
      read(from);
    }
    bool temporary = false;
    for (const BufferId id : launch.buffers) {
      verify_id(id);
      need_sizes(id);
      temporary = temporary || storage_kind(id) == BufferKind::Temporary;
    }
    if (!temporary) fail("names no temporary, so it writes nothing");
    for (const BufferId id : launch.buffers) written(id) = true;
    if (launch.product) verify_product(launch, *launch.product);
  }
  void verify_product(const Launch& launch, const MatrixProduct& product) {
    if (program_.device != Device::Cuda) fail("the product of a library on {}, which has none", device_name(program_.device));
    for (const sym::Expr& size : {product.batch, product.rows, product.columns, product.depth, product.bias_offset}) need(size, "a size of the product");
    const auto type_of = [&](int32_t index, std::string_view role) -> const op::TensorType& {
      if (index < 0 || index >= static_cast<int32_t>(launch.buffers.size())) fail("the {} of the product is buffer {} of {}", role, index, launch.buffers.size());
      return buffer(launch.buffers[static_cast<size_t>(index)]).type;
    };
    const DType dtype = type_of(product.result.buffer, "result").dtype;
    if (dtype != DType::F32 && dtype != DType::F16 && dtype != DType::BF16) fail("the product is of {}, expected f32, f16 or bf16", dtype_name(dtype));
    for (const auto& [role, operand] : {std::pair("left operand", &product.left), std::pair("right operand", &product.right), std::pair("result", &product.result)}) {
      const op::TensorType& type = type_of(operand->buffer, role);
      if (type.dtype != dtype) fail("the {} of the product is {}, its result {}", role, dtype_name(type.dtype), dtype_name(dtype));
      for (const sym::Expr& expr : {operand->offset, operand->batch_stride, operand->row_stride, operand->column_stride}) need(expr, [&] { return fmt::format("the {} of the product", role); });
    }
    if (product.bias >= 0 && type_of(product.bias, "bias").dtype != dtype) fail("the bias of the product is not {}", dtype_name(dtype));
    if (!product.result.column_stride.is_const(1)) fail("the columns of the product's result lie {} apart, expected 1", sym::to_string(product.result.column_stride));
    write(product.workspace);
    const op::TensorType& workspace = buffer(product.workspace).type;
    if (workspace.dtype != DType::U8 || workspace.rank() != 1) fail("the workspace {} is not u8 of one dimension", typed(product.workspace));
  }

  void verify_line(const Call& call) {
    if (call.op == nullptr) fail("no op");
    if (!call.op->reference) fail("{} has no native function", call.op->name);
    for (const auto& [name, attr] : call.attrs.all()) {
      const op::Shape* sizes = std::get_if<op::Shape>(&attr);
      if (sizes != nullptr && name != "defines") need(*sizes, [&] { return "attribute " + name; });
    }
    std::vector<op::TensorType> types;
    std::vector<char> present;
    for (const BufferId id : call.inputs) {
      if (id.valid()) read(id);
      present.push_back(id.valid() ? 1 : 0);
      types.push_back(id.valid() ? buffer(id).type : op::TensorType{});
    }
    std::vector<op::TensorType> results;
    try {
      results = op::infer_types(*call.op, types, present, call.attrs, static_cast<int64_t>(call.outputs.size()));
    } catch (const UserError& error) {
      fail("{}", error.what());
    }
    for (const BufferId id : call.outputs) {
      if (id.valid()) verify_id(id);
    }
    bind_from(call.defines, call.outputs);
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      if (!call.outputs[i].valid()) continue;
      need_match(buffer(call.outputs[i]).type, results[i], fmt::format("result {}", i));
      write(call.outputs[i]);
    }
  }

  void verify_line(const Copy& copy) {
    read(copy.from);
    verify_id(copy.to);
    const op::TensorType &from = buffer(copy.from).type, &to = buffer(copy.to).type;
    if (from.dtype != to.dtype || sym::prove_equal(op::count_of(from.shape), op::count_of(to.shape), program_.facts) == sym::Proof::No)
      fail("copies {} to {}", typed(copy.from), typed(copy.to));
    write(copy.to);
  }

  void verify_line(const ReadSymbols& reading) {
    read(reading.from);
    const op::TensorType& type = buffer(reading.from).type;
    if (!is_int(type.dtype) && type.dtype != DType::Bool) fail("symbols are integers, {} is not", typed(reading.from));
    if (sym::prove_equal(op::count_of(type.shape), static_cast<int64_t>(reading.defines.size()), program_.facts) == sym::Proof::No)
      fail("defines {} symbols from {}", reading.defines.size(), typed(reading.from));
    for (const std::string& symbol : reading.defines) bind(symbol);
  }

  void verify_line(const Assert& check) {
    need(check.condition, "the condition");
    if (check.message.empty()) fail("a check without words");
  }

  void verify_nested(const std::unique_ptr<Program>& nested, std::string_view role) const {
    if (nested == nullptr) fail("{} is missing", role);
    if (nested->device != program_.device) fail("{} runs on {}, not on {}", role, device_name(nested->device), device_name(program_.device));
    Verifier(*nested, fmt::format("{} > {}", where_, role)).run(bound_);
  }

  void verify_line(const If& branch) {
    read(branch.condition);
    need_one_element(branch.condition, DType::Bool, "condition");
    read_all(branch.inputs);
    for (const BufferId id : branch.outputs) verify_id(id);
    const std::pair<const std::unique_ptr<Program>&, std::string_view> both[] = {{branch.then, "then"}, {branch.otherwise, "else"}};
    for (const auto& [nested, role] : both) {
      verify_nested(nested, role);
      if (nested->input_types.size() != branch.inputs.size()) fail("{} takes {} inputs, not {}", role, nested->input_types.size(), branch.inputs.size());
      if (nested->outputs.size() != branch.outputs.size()) fail("{} has {} results, not {}", role, nested->outputs.size(), branch.outputs.size());
      for (size_t i = 0; i < branch.inputs.size(); ++i)
        need_match(buffer(branch.inputs[i]).type, nested->input_types[i], fmt::format("input {} of {}", i, role));
      for (size_t i = 0; i < branch.outputs.size(); ++i)
        need_match(nested->outputs[i].type, buffer(branch.outputs[i]).type, fmt::format("result {} of {}", i, role));
    }
    bind_from(branch.defines, branch.outputs);
    write_all(branch.outputs);
  }

  void verify_line(const While& loop) {
    if (loop.trip_count.valid()) {
      read(loop.trip_count);
      need_one_element(loop.trip_count, DType::I64, "trip count");
    }
    if (loop.condition.valid()) {
      read(loop.condition);
      need_one_element(loop.condition, DType::Bool, "condition");
    }
    read_all(loop.inputs);
    for (const BufferId id : loop.outputs) verify_id(id);
    if (loop.carried < 0 || loop.scans < 0) fail("{} carried and {} scanned values", loop.carried, loop.scans);
    const size_t carried = static_cast<size_t>(loop.carried), scans = static_cast<size_t>(loop.scans);
    if (loop.inputs.size() < carried) fail("{} inputs are too few for {} carried values", loop.inputs.size(), carried);
    if (loop.outputs.size() != carried + scans) fail("has {} results, expected {} carried and {} scanned", loop.outputs.size(), carried, scans);
    verify_nested(loop.body, "body");
    const std::vector<op::TensorType>& takes = loop.body->input_types;
    const std::vector<Output>& gives = loop.body->outputs;
    if (takes.size() != loop.inputs.size() + 2) fail("the body takes {} inputs, expected {}", takes.size(), loop.inputs.size() + 2);
    if (gives.size() != 1 + carried + scans) fail("the body has {} results, expected {}", gives.size(), 1 + carried + scans);
    if (takes[0].dtype != DType::I64) fail("the body's iteration number is {}, expected i64", op::to_string(takes[0]));
    if (takes[1].dtype != DType::Bool) fail("the condition that the body takes is {}, expected bool", op::to_string(takes[1]));
    if (gives[0].type.dtype != DType::Bool) fail("the condition that the body gives is {}, expected bool", op::to_string(gives[0].type));
    for (size_t i = 0; i < loop.inputs.size(); ++i) need_match(buffer(loop.inputs[i]).type, takes[i + 2], fmt::format("input {}", i));
    for (size_t i = 0; i < carried; ++i) {
      need_match(gives[i + 1].type, takes[i + 2], fmt::format("carried value {} after the body", i));
      need_match(buffer(loop.outputs[i]).type, takes[i + 2], fmt::format("carried result {}", i));
    }
    for (size_t i = carried; i < carried + scans; ++i) {
      op::TensorType stacked = gives[i + 1].type;
      stacked.shape.insert(stacked.shape.begin(), sym::Expr());
      need_match(buffer(loop.outputs[i]).type, stacked, fmt::format("stacked result {}", i - carried));
    }
    bind_from(loop.defines, loop.outputs);
    write_all(loop.outputs);
  }

  // ---- results and memory
  void verify_output(const Output& output) {
    const std::string before = std::exchange(where_, fmt::format("{} > result \"{}\"", path_, output.name));
    read(output.buffer);
    need(output.type.shape, "its shape");
    need(output.offset, "its offset");
    if (dtype_bits(output.type.dtype) != dtype_bits(buffer(output.buffer).type.dtype))
      fail("{} has elements of another width than {}", op::to_string(output.type), typed(output.buffer));
    if (output.strides) {
      need(*output.strides, "its strides");
      if (output.strides->size() != output.type.shape.size())
        fail("{} with {} strides", op::to_string(output.type), output.strides->size());
      const BufferKind kind = storage_kind(output.buffer);
      if (kind != BufferKind::Input && kind != BufferKind::Constant) fail("a strided view of %{}, which is neither input nor constant", buffer(output.buffer).name);
    } else if (!output.offset.is_const(0) || sym::prove_equal(op::count_of(output.type.shape), op::count_of(buffer(output.buffer).type.shape),
                                                              program_.facts) == sym::Proof::No) {
      fail("{} is not the whole of {}", op::to_string(output.type), typed(output.buffer));
    }
    where_ = before;
  }

  void verify_placement_order() const {
    if (program_.placement_order.empty()) return;  // memory is not planned yet
    std::set<int32_t> missing;
    for (const ArenaSlot& slot : arena_slots(program_)) missing.insert(slot.buffers[0].index);
    for (const int32_t index : program_.placement_order) {
      if (index < 0 || index >= static_cast<int32_t>(program_.buffers.size())) fail("places buffer {} of {}", index, program_.buffers.size());
      if (missing.erase(index) == 0) fail("places %{}, which has no slot of its own in the arena or is placed already", buffer(BufferId{index}).name);
    }
    if (!missing.empty()) fail("places no %{}", buffer(BufferId{*missing.begin()}).name);
  }

  const Program& program_;
  const std::string path_;
  std::string where_;
  Symbols bound_;
  std::unordered_set<sym::Expr> closed_;   // all of whose symbols are bound
  std::vector<bool> written_;  // by storage buffer
};

}  // namespace

void verify(const Program& program) {
  // Nobody encloses the outermost program: its outer symbols are given by the caller.
  Verifier(program, "program " + program.name).run(Symbols(program.outer_symbols.begin(), program.outer_symbols.end()));
}

}  // namespace fuseloom::program
