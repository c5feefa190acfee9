#include "emit/program_cpp.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/check.h"
#include "base/hash.h"
#include "emit/c_like.h"
#include "emit/model_text.h"
#include "emit/source_kernel.h"
#include "program/layout.h"
#include "program/line.h"

namespace fuseloom::emit {

using program::BufferId;
using program::BufferKind;
using program::Layout;
using program::Program;
using program::Storage;
using sym::Expr;

namespace {

constexpr int64_t kMaxRank = 16;    // FUSELOOM_MAX_RANK
constexpr int32_t kMaxScans = 64;   // of one loop, in run_loop

// As a C string literal.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte >= 0x7f || c == '?') {   // a '?' might begin a trigraph
      out += fmt::format("\\{:03o}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Fit for a // comment.
std::string comment(std::string_view text) {
  std::string out;
  for (const char c : text) out += static_cast<unsigned char>(c) < 0x20 || c == '\\' ? ' ' : c;
  return out;
}

std::string_view dtype_constant(DType dtype) {
  switch (dtype) {
    case DType::Bool: return "FUSELOOM_BOOL";
    case DType::I8: return "FUSELOOM_I8";
    case DType::I16: return "FUSELOOM_I16";
    case DType::I32: return "FUSELOOM_I32";
    case DType::I64: return "FUSELOOM_I64";
    case DType::U8: return "FUSELOOM_U8";
    case DType::U16: return "FUSELOOM_U16";
    case DType::U32: return "FUSELOOM_U32";
    case DType::U64: return "FUSELOOM_U64";
    case DType::F16: return "FUSELOOM_F16";
    case DType::BF16: return "FUSELOOM_BF16";
    case DType::F32: return "FUSELOOM_F32";
    case DType::F64: return "FUSELOOM_F64";
    case DType::C64: return "FUSELOOM_C64";
    case DType::C128: return "FUSELOOM_C128";
  }
  throw InternalError("dtype_constant: unknown dtype");
}

// The C type of an integer or bool in memory.
std::string_view integer_type(DType dtype) {
  switch (dtype) {
    case DType::Bool: return "bool";
    case DType::I8: return "signed char";
    case DType::I16: return "short";
    case DType::I32: return "int";
    case DType::I64: return "i64";
    case DType::U8: return "unsigned char";
    case DType::U16: return "unsigned short";
    case DType::U32: return "unsigned";
    case DType::U64: return "unsigned long long";
    case DType::F16: case DType::BF16: case DType::F32: case DType::F64: case DType::C64: case DType::C128: break;
  }
  throw InternalError(fmt::format("a size is read from a buffer of {}", dtype_name(dtype)));
}

std::string type_text(const op::TensorType& type) { return comment(op::to_string(type)); }

// ---- the text of one instruction set ---------------------------------------------------------------------------------
// What the programs of one variant share.
struct VariantText {
  const program::Weights& weights;
  std::string plans;                       // the structs
  std::string functions;
  std::vector<std::string> programs;       // their identifiers, nested ones first
  int64_t prepared_bytes = 0;
};

// Writes one program, and those nested in it.
class ProgramWriter {
 public:
  ProgramWriter(const Program& program, std::string id, VariantText& variant)
      : program_(program), id_(std::move(id)), variant_(variant), layout_(program::layout_of(program)) {}

  void write() {
    check_limits();
    write_nested();
    declare_names();
    find_derived_sizes();
    write_plan();
    write_prepare();
    write_run();
    variant_.programs.push_back(id_);
  }

 private:
  static std::string nested_id(const std::string& id, size_t line, std::string_view part) { return fmt::format("{}_{}_{}", id, line, part); }

  void check_limits() const {
    for (const op::TensorType& type : program_.input_types)
      FL_SUPPORTED(type.rank() <= kMaxRank, "ahead-of-time output: an input has rank {}, at most {} is supported", type.rank(), kMaxRank);
    for (const program::Output& output : program_.outputs)
      FL_SUPPORTED(output.type.rank() < kMaxRank, "ahead-of-time output: output '{}' has rank {}, less than {} is supported", output.name, output.type.rank(), kMaxRank);
  }

  void write_nested() {
    for (size_t i = 0; i < program_.lines.size(); ++i) {
      const program::Line& line = program_.lines[i];
      if (const auto* branch = std::get_if<program::If>(&line.what)) {
        ProgramWriter(*branch->then, nested_id(id_, i, "then"), variant_).write();
        ProgramWriter(*branch->otherwise, nested_id(id_, i, "else"), variant_).write();
      } else if (const auto* loop = std::get_if<program::While>(&line.what)) {
        FL_SUPPORTED(loop->scans <= kMaxScans, "ahead-of-time output: a loop has {} stacked results, at most {} are supported", loop->scans, kMaxScans);
        ProgramWriter(*loop->body, nested_id(id_, i, "body"), variant_).write();
      }
    }
  }

  // ---- names
  void declare_names() {
    for (const char* taken : {"run", "plan", "arena", "inputs", "results", "outer", "key", "errors", "threads", "bytes", "slots", "scratch", "launch", "take",
                              "give_back", "place", "deliver", "keep", "fail", "min", "max", "mod", "floor_div", "weights", "prepared", "Run", "Value", "Result",
                              "Slot", "Blocks", "Errors", "Kernel", "Loop", "Job", "Variant", "State", "known", "memcpy", "memmove", "memcmp"})
      names_.declare(taken);
    for (const program::SymbolBinding& binding : layout_.bindings) symbols_[binding.symbol] = declare(binding.symbol);
    for (const program::Line& line : program_.lines) {
      for (const std::string& symbol : program::defines_of(line)) symbols_[symbol] = declare(symbol);
    }
    for (size_t b = 0; b < program_.buffers.size(); ++b) pointers_.push_back(layout_.used[b] != 0 ? declare(pointer_name(program_.buffers[b])) : "");
  }
  // Clear of the macros of the C library, which are in capitals but for a few.
  std::string declare(const std::string& wanted) {
    static constexpr std::string_view kMacros[] = {"errno", "stdin", "stdout", "stderr", "environ", "assert", "offsetof"};
    const bool capitals = wanted.size() > 2 && std::none_of(wanted.begin(), wanted.end(), [](char c) { return std::islower(static_cast<unsigned char>(c)) != 0; });
    const bool macro = std::find(std::begin(kMacros), std::end(kMacros), wanted) != std::end(kMacros) || wanted.starts_with("st_") || wanted.starts_with("si_") || wanted.starts_with("sa_");
    return names_.declare(capitals || macro ? wanted + "_" : wanted);
  }
  static std::string pointer_name(const program::Buffer& buffer) {
    std::string name;
    // Names of models are paths; what tells them apart is mostly at the end.
    for (const char c : buffer.name.size() > 48 ? buffer.name.substr(buffer.name.size() - 48) : buffer.name) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
    return std::isdigit(static_cast<unsigned char>(name[0])) != 0 ? "t" + name : name;
  }
  const std::string& pointer_variable(BufferId id) const { return pointers_[static_cast<size_t>(id.index)]; }
  const program::Buffer& buffer(BufferId id) const { return program_.buffer(id); }

  // The C text of a buffer's address.
  std::string pointer(BufferId id) {
    const Expr offset = program::byte_offset(program_, id);
    const std::string& root = pointer_variable(layout_.storage_of(id).buffer);
    return offset.is_const(0) ? root : fmt::format("{} + {}", root, integers().term(offset));
  }

  // ---- sizes
  IntegerText integers() {
    return {.name = [this](const std::string& symbol) { return symbols_.at(symbol); },
            .helper = [](std::string_view name) { return std::string(name.substr(0, name.rfind("_i64"))); },
            .facts = &program_.facts,
            .named = [this](const Expr& expr) {
              const auto found = derived_.find(expr);
              return found == derived_.end() || !found->second.open ? std::string() : found->second.name;
            }};
  }
  std::string value(const Expr& expr) { return integers().value(expr); }
  std::string list(const op::Shape& shape) {
    std::string text;
    for (const Expr& size : shape) text += (text.empty() ? "" : ", ") + value(size);
    return text;
  }
  static Expr bytes_expr(const op::TensorType& type) { return op::count_of(type.shape) * dtype_bytes(type.dtype); }

  // Divisions, minima and the like that several sizes have in common get a variable of their own, at the stage where they
  // become known.
  void find_derived_sizes() {
    std::map<Expr, int> uses;
    std::vector<Expr> order;   // inner ones first
    const std::function<void(const Expr&)> count = [&](const Expr& expr) {
      if (expr.is_const() || expr.is_symbol()) return;
      const sym::Kind kind = expr.kind();
      const bool worth_a_name = kind == sym::Kind::FloorDiv || kind == sym::Kind::Mod || kind == sym::Kind::Min || kind == sym::Kind::Max || kind == sym::Kind::Select;
      if (worth_a_name && uses[expr]++ > 0) return;
      for (const Expr& arg : expr.args()) count(arg);
      if (worth_a_name) order.push_back(expr);
    };
    const auto count_all = [&](const op::Shape& shape) {
      for (const Expr& size : shape) count(size);
    };
    for (const op::TensorType& type : program_.input_types) count_all(type.shape);
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      if (layout_.used[b] == 0) continue;
      count_all(program_.buffers[b].type.shape);
      count(program_.buffers[b].offset);
    }
    for (const program::Line& line : program_.lines) {
      if (const auto* launch = std::get_if<program::Launch>(&line.what)) {
        count_all(launch->sizes);
        count(launch->work);
        for (const program::Variant& variant : launch->variants) {
          for (const Expr& expr : {variant.condition, variant.extent, variant.scratch_bytes}) count(expr);
        }
      } else if (const auto* check = std::get_if<program::Assert>(&line.what)) {
        count(check->condition);
      }
    }
    for (const program::Output& output : program_.outputs) {
      count_all(output.type.shape);
      if (output.strides) count_all(*output.strides);
    }
    for (const Expr& expr : order) {
      if (uses.at(expr) < 2) continue;
      derived_[expr] = {.name = names_.declare(fmt::format("size_{}", derived_order_.size())), .stage = layout_.stage_of(expr)};
      derived_order_.push_back(expr);
    }
  }
  // Writes the derived sizes of a stage; from here on they are known by their names.
  void open_derived(SourceWriter& out, int32_t stage) {
    for (const Expr& expr : derived_order_) {
      Derived& derived = derived_.at(expr);
      if (derived.stage != stage) continue;
      out.line("const i64 {} = {};", derived.name, value(expr));
      derived.open = true;
    }
  }
  void close_derived() {
    for (auto& [expr, derived] : derived_) derived.open = false;
  }

  // expect_range(...) for what the facts say of a symbol, or "".
  std::string range_check(const std::string& symbol, std::string_view errors) const {
    const auto fact = program_.facts.symbols.find(symbol);
    if (fact == program_.facts.symbols.end()) return "";
    const sym::Range& range = fact->second;
    const auto limit = [](int64_t value) { return value == INT64_MIN ? std::string("INT64_MIN") : value == INT64_MAX ? std::string("INT64_MAX") : std::to_string(value); };
    return fmt::format("expect_range({}, {}, {}, {}, {}, {})", errors, quoted(symbol), symbols_.at(symbol), limit(range.low), limit(range.high), range.divisor);
  }

  // ---- plan
  size_t key_size() const {
    size_t size = program_.outer_symbols.size();
    for (const op::TensorType& type : program_.input_types) size += type.shape.size();
    return size;
  }

  void write_plan() {
    SourceWriter out;
    out.open("inline bool plan_{}(Plan_{}* plan, const i64* outer, const Value* inputs, int32_t threads, Errors* errors)", id_, id_);
    write_bindings(out);
    open_derived(out, 0);
    write_arena(out);
    write_scratch(out);
    for (const program::SymbolBinding& binding : layout_.bindings) out.line("plan->{} = {};", symbols_.at(binding.symbol), symbols_.at(binding.symbol));
    for (const Expr& expr : derived_order_) {
      if (derived_.at(expr).stage == 0) out.line("plan->{} = {};", derived_.at(expr).name, derived_.at(expr).name);
    }
    out.line("plan->known = true;");
    out.line("return true;");
    out.close();
    close_derived();
    std::string text = out.text();
    for (const std::string_view parameter : {"outer", "inputs", "threads", "errors"}) {
      const size_t head = text.find('\n');
      if (!mentions(std::string_view(text).substr(head), parameter)) text.erase(text.find(parameter) - 1, parameter.size() + 1);
    }

    SourceWriter plan;
    plan.open("struct Plan_{}", id_);
    plan.line("bool known;");
    if (key_size() > 0) plan.line("i64 key[{}];   // sizes that it was made for", key_size());
    for (const program::SymbolBinding& binding : layout_.bindings) plan.line("i64 {};", symbols_.at(binding.symbol));
    for (const Expr& expr : derived_order_) {
      if (derived_.at(expr).stage == 0) plan.line("i64 {};", derived_.at(expr).name);
    }
    if (!layout_.placement.empty()) plan.line("i64 offsets[{}];   // in the arena", layout_.placement.size());
    plan.line("i64 arena_bytes, scratch_bytes;");
    plan.close("};");
    variant_.plans += plan.text() + "\n";
    variant_.functions += text + "\n";
  }

  void write_bindings(SourceWriter& out) {
    // 1. The key; with the same one everything is known already.
    std::string key;
    std::vector<std::vector<size_t>> at(program_.input_types.size());
    size_t count = program_.outer_symbols.size();
    for (size_t i = 0; i < count; ++i) key += fmt::format("{}outer[{}]", key.empty() ? "" : ", ", i);
    for (size_t i = 0; i < program_.input_types.size(); ++i) {
      for (size_t d = 0; d < program_.input_types[i].shape.size(); ++d) {
        key += fmt::format("{}inputs[{}].sizes[{}]", key.empty() ? "" : ", ", i, d);
        at[i].push_back(count++);
      }
    }
    if (key.empty()) {
      out.line("if (plan->known) return true;");
    } else {
      out.line("const i64 key[] = {{{}}};", key);
      out.line("if (plan->known && memcmp(plan->key, key, sizeof key) == 0) return true;");
      out.line("plan->known = false;");
      out.line("memcpy(plan->key, key, sizeof key);");
    }
    // 2. Symbols.
    for (const program::SymbolBinding& binding : layout_.bindings) {
      const std::string& name = symbols_.at(binding.symbol);
      const size_t index = binding.outer >= 0 ? static_cast<size_t>(binding.outer) : at[static_cast<size_t>(binding.input)][static_cast<size_t>(binding.dimension)];
      if (binding.solution) {
        symbols_[binding.size_name] = fmt::format("key[{}]", index);
        out.line("const i64 {} = {};", name, value(*binding.solution));
        symbols_.erase(binding.size_name);
      } else {
        out.line("const i64 {} = key[{}];", name, index);
      }
    }
    // 3. Every size must be what its expression says.
    std::set<std::string> checked;
    for (size_t i = 0; i < program_.input_types.size(); ++i) {
      const op::Shape& shape = program_.input_types[i].shape;
      for (size_t d = 0; d < shape.size(); ++d) {
        const bool is_binding = std::any_of(layout_.bindings.begin(), layout_.bindings.end(), [&](const program::SymbolBinding& binding) {
          return binding.input == static_cast<int32_t>(i) && binding.dimension == static_cast<int32_t>(d) && !binding.solution;
        });
        if (!is_binding)
          out.line("if (!expect_size(errors, {}, {}, {}, {}, key[{}])) return false;", quoted(program_.input_names[i]), d, quoted(sym::to_string(shape[d])), value(shape[d]), at[i][d]);
        for (const std::string& symbol : sym::symbols_of(shape[d])) {
          const std::string check = checked.insert(symbol).second ? range_check(symbol, "errors") : "";
          if (!check.empty()) out.line("if (!{}) return false;", check);
        }
      }
    }
  }

  // The bytes of a tensor whose sizes are known; as an expression that sets an error when one is negative.
  std::string checked_bytes(BufferId id, std::string_view errors) {
    const op::TensorType& type = buffer(id).type;
    const Expr bytes = bytes_expr(type);
    if (bytes.is_const()) return value(bytes);
    return fmt::format("bytes_of({}, {}, {}, {{{}}})", errors, quoted(buffer(id).name), dtype_bytes(type.dtype), list(type.shape));
  }

  void write_arena(SourceWriter& out) {
    for (const Storage& storage : layout_.storages) {
      if (storage.place == Storage::Place::Result && !bytes_expr(buffer(storage.buffer).type).is_const())
        out.line("if ({} < 0) return false;", checked_bytes(storage.buffer, "errors"));
    }
    if (layout_.placement.empty()) {
      out.line("plan->arena_bytes = 0;");
      return;
    }
    std::string slots;
    out.line("// The arena, slot by slot in the order in which first fit places them.");
    out.open("const i64 bytes[] =");
    bool constant = true;
    for (const int32_t index : layout_.placement) {
      const Storage& storage = layout_.storages[static_cast<size_t>(index)];
      constant = constant && bytes_expr(buffer(storage.buffer).type).is_const();
      out.line("{},   // {}: {}", checked_bytes(storage.buffer, "errors"), pointer_variable(storage.buffer), type_text(buffer(storage.buffer).type));
      slots += fmt::format("{}{{{}, {}}}", slots.empty() ? "" : ", ", storage.first, storage.last);
    }
    out.close("};");
    if (!constant) out.line("if (errors->status != FUSELOOM_OK) return false;");
    out.line("static const Slot slots[] = {{{}}};", slots);
    out.line("plan->arena_bytes = first_fit(slots, {}, bytes, plan->offsets);", layout_.placement.size());
  }

  void write_scratch(SourceWriter& out) {
    std::set<std::string> terms;
    for (const program::Line& line : program_.lines) {
      const auto* launch = std::get_if<program::Launch>(&line.what);
      if (launch == nullptr) continue;
      for (const program::Variant& variant : launch->variants) {
        if (variant.scratch_bytes.is_const(0)) continue;
        int32_t stage = 0;
        for (const Expr& expr : {variant.condition, variant.scratch_bytes, variant.extent, launch->work}) stage = std::max(stage, layout_.stage_of(expr));
        if (stage > 0) continue;
        const std::string condition = variant.condition.is_const(1) ? "" : integers().condition(variant.condition) + " ? ";
        terms.insert(fmt::format("{}scratch_of({}, {}, {}, threads){}", condition, value(variant.extent), value(variant.scratch_bytes), value(launch->work), condition.empty() ? "" : " : 0"));
      }
    }
    out.line("plan->scratch_bytes = 0;");
    for (const std::string& term : terms) out.line("plan->scratch_bytes = max(plan->scratch_bytes, {});", term);
  }

  // ---- lines
  // Pointers to what lives as long as the program.
  void declare_fixed(SourceWriter& out, const std::string& body) {
    for (const Storage& storage : layout_.storages) {
      if (storage.place != Storage::Place::Fixed || !mentions(body, pointer_variable(storage.buffer))) continue;
      const program::Buffer& held = buffer(storage.buffer);
      const std::string place = held.kind == BufferKind::Constant
                                    ? fmt::format("run->weights + {}", variant_.weights.offset_of(program_.constants[static_cast<size_t>(held.index)]))
                                    : fmt::format("run->prepared + {}", prepared_offset(storage.buffer));
      out.line("char* const {} = {};   // {}", pointer_variable(storage.buffer), place, type_text(held.type));
    }
  }
  int64_t prepared_offset(BufferId id) {
    const auto known = prepared_.find(id.index);
    if (known != prepared_.end()) return known->second;
    const int64_t offset = variant_.prepared_bytes;
    const std::optional<int64_t> bytes = bytes_expr(buffer(id).type).as_const();
    FL_CHECK(bytes.has_value(), "the prepared buffer %{} has no constant size", buffer(id).name);
    variant_.prepared_bytes += (*bytes + 63) / 64 * 64;
    return prepared_[id.index] = offset;
  }

  void write_prepare() {
    SourceWriter lines;
    lines.open("");
    for (const program::Line& line : program_.init) {
      lines.line("// {}", comment(line.origin));
      write_launch(lines, std::get<program::Launch>(line.what), line.origin);
    }
    const std::string body = lines.text().substr(2);
    SourceWriter out;
    out.open("inline bool prepare_{}({})", id_, program_.init.empty() ? "Run*" : "Run* run");
    declare_fixed(out, body);
    out.append("\n" + body);
    out.line("return true;");
    out.close();
    variant_.functions += out.text() + "\n";
  }

  void write_run() {
    close_derived();
    for (const Expr& expr : derived_order_) derived_.at(expr).open = derived_.at(expr).stage == 0;
    SourceWriter lines;
    lines.open("");
    place_results(lines);
    for (size_t i = 0; i < program_.lines.size(); ++i) write_line(lines, i);
    finish_results(lines);
    const std::string body = lines.text().substr(2);

    SourceWriter head;
    head.open("");
    for (const Storage& storage : layout_.storages) {
      const std::string& name = pointer_variable(storage.buffer);
      if (!mentions(body, name)) continue;
      const std::string type = type_text(buffer(storage.buffer).type);
      if (storage.place == Storage::Place::Input) head.line("char* const {} = inputs[{}].data;   // {}", name, storage.index, type);
    }
    declare_fixed(head, body);
    for (size_t k = 0; k < layout_.placement.size(); ++k) {
      const Storage& storage = layout_.storages[static_cast<size_t>(layout_.placement[k])];
      head.line("char* const {} = arena + plan->offsets[{}];   // {}, lines {} to {}", pointer_variable(storage.buffer), k, type_text(buffer(storage.buffer).type), storage.first, storage.last);
    }
    const std::string declarations = head.text().substr(2);
    SourceWriter sizes;
    sizes.open("");
    const auto declare = [&](const std::string& name) {
      if (mentions(body, name) || mentions(declarations, name)) sizes.line("const i64 {} = plan->{};", name, name);
    };
    for (const program::SymbolBinding& binding : layout_.bindings) declare(symbols_.at(binding.symbol));
    for (const Expr& expr : derived_order_) {
      if (derived_.at(expr).stage == 0) declare(derived_.at(expr).name);
    }

    SourceWriter out;
    const bool reads_inputs = mentions(declarations + body, "inputs") || key_size() > program_.outer_symbols.size();
    out.open("inline bool run_{}(Run* run, const i64*{}, const Value*{}, Result*{})", id_, program_.outer_symbols.empty() ? "" : " outer", reads_inputs ? " inputs" : "",
             program_.outputs.empty() ? "" : " results");
    out.line("Plan_{}* const plan = &static_cast<State*>(run->state)->{};", id_, id_);
    out.line("if (!plan_{}(plan, {}, {}, run->threads, run->errors)) return false;", id_, program_.outer_symbols.empty() ? "nullptr" : "outer", reads_inputs ? "inputs" : "nullptr");
    if (!layout_.placement.empty()) {
      if (is_outermost()) {
        out.line("char* const arena = run->arena;");
      } else {
        out.line("char* const arena = take(run, plan->arena_bytes);");
        out.line("if (arena == nullptr) return false;");
      }
    }
    out.append(sizes.text().substr(2) + declarations + "\n" + body);
    if (!layout_.placement.empty() && !is_outermost()) out.line("give_back(run, arena);");
    out.line("return true;");
    out.close();
    variant_.functions += out.text() + "\n";
  }
  bool is_outermost() const { return id_ == "main"; }

  void write_line(SourceWriter& out, size_t index) {
    const program::Line& line = program_.lines[index];
    out.text_line("");
    std::string nodes;
    for (const int32_t node : line.nodes) nodes += fmt::format("{}{}", nodes.empty() ? "" : ", ", node);
    out.line("// {}: {}{}", index, comment(line.origin), nodes.empty() ? "" : "   [node " + nodes + "]");
    for (const int32_t storage : layout_.births[index]) give_birth(out, layout_.storages[static_cast<size_t>(storage)]);
    std::visit([&](const auto& what) { write_line(out, what, line, index); }, line.what);
    observe(out, line, index);
    for (const int32_t storage : layout_.deaths[index]) {
      const Storage& dead = layout_.storages[static_cast<size_t>(storage)];
      if (dead.index < 0) out.line("give_back(run, {});", pointer_variable(dead.buffer));
    }
  }

  // Memory for a storage whose size has become known.
  void give_birth(SourceWriter& out, const Storage& storage) {
    const std::string& name = pointer_variable(storage.buffer);
    const std::string size = names_.declare("bytes_of_" + name);
    out.line("const i64 {} = {};", size, checked_bytes(storage.buffer, "run->errors"));
    if (!bytes_expr(buffer(storage.buffer).type).is_const()) out.line("if ({} < 0) return false;", size);
    if (storage.index >= 0) {
      const program::Output& output = program_.outputs[static_cast<size_t>(storage.index)];
      out.line("if (!place(run, &results[{}], {}, {})) return false;", storage.index, size, quoted(output.name));
      out.line("char* const {} = results[{}].value.data;   // {}", name, storage.index, type_text(buffer(storage.buffer).type));
    } else {
      out.line("char* const {} = take(run, {});   // {}", name, size, type_text(buffer(storage.buffer).type));
      out.line("if ({} == nullptr) return false;", name);
    }
  }

  void place_results(SourceWriter& out) {
    for (const Storage& storage : layout_.storages) {
      if (storage.place != Storage::Place::Result) continue;
      const program::Output& output = program_.outputs[static_cast<size_t>(storage.index)];
      out.line("if (!place(run, &results[{}], {}, {})) return false;", storage.index, value(bytes_expr(output.type)), quoted(output.name));
      out.line("char* const {} = results[{}].value.data;   // {}", pointer_variable(storage.buffer), storage.index, type_text(buffer(storage.buffer).type));
    }
  }

  void write_launch(SourceWriter& out, const program::Launch& launch, const std::string& origin) {
    std::string buffers, sizes;
    for (const BufferId id : launch.buffers) buffers += (buffers.empty() ? "" : ", ") + pointer(id);
    for (const Expr& size : launch.sizes) sizes += (sizes.empty() ? "" : ", ") + value(size);
    out.open("");
    if (!buffers.empty()) out.line("void* const buffers[] = {{{}}};", buffers);
    if (!sizes.empty()) out.line("const i64 sizes[] = {{{}}};", sizes);
    for (size_t i = 0; i < launch.variants.size(); ++i) {
      const program::Variant& variant = launch.variants[i];
      const std::string& kernel = program_.kernels[static_cast<size_t>(variant.kernel)].name;
      if (!variant.condition.is_const(1)) out.open("if ({})", integers().condition(variant.condition));
      else if (i > 0) out.open("");
      out.line("if (!FUSELOOM_TIMED({}, {}, {}, launch(run, {}, {}, {}, {}, {}, {}))) return false;", quoted(kernel), quoted(origin), value(launch.bytes), kernel,
               buffers.empty() ? "nullptr" : "buffers", sizes.empty() ? "nullptr" : "sizes", value(variant.extent), value(variant.scratch_bytes), value(launch.work));
      if (i + 1 < launch.variants.size()) out.close("} else");
      else if (i > 0) out.close();
    }
    out.close();
  }
  void write_line(SourceWriter& out, const program::Launch& launch, const program::Line& line, size_t) { write_launch(out, launch, line.origin); }

  void write_line(SourceWriter&, const program::Call& call, const program::Line&, size_t) {
    throw InternalError(fmt::format("the native op {} cannot be written as C++; native_calls() tells before", call.op->name));
  }

  void write_line(SourceWriter& out, const program::Copy& copy, const program::Line&, size_t) {
    const Expr bytes = bytes_expr(buffer(copy.from).type);
    if (bytes.is_const(0)) return;
    out.line("{}memmove({}, {}, static_cast<size_t>({}));", bytes.is_const() ? "" : fmt::format("if ({} > 0) ", value(bytes)), pointer(copy.to), pointer(copy.from), value(bytes));
  }

  void write_line(SourceWriter& out, const program::ReadSymbols& read, const program::Line&, size_t index) {
    const op::TensorType& type = buffer(read.from).type;
    const Expr count = op::count_of(type.shape);
    if (!count.is_const(static_cast<int64_t>(read.defines.size()))) {
      out.line("if ({} != {}) return fail(run->errors, FUSELOOM_CHECK_FAILED, \"%s: %lld elements, expected {}\", {}, static_cast<i64>({}));", value(count), read.defines.size(),
               read.defines.size(), quoted(buffer(read.from).name), value(count));
    }
    for (size_t i = 0; i < read.defines.size(); ++i)
      out.line("const i64 {} = integer_at<{}>({}, {});", symbols_.at(read.defines[i]), integer_type(type.dtype), pointer(read.from), i);
    check_ranges(out, read.defines);
    if (layout_.opens[index] > 0) open_derived(out, layout_.opens[index]);
  }
  void check_ranges(SourceWriter& out, const std::vector<std::string>& symbols) {
    for (const std::string& symbol : symbols) {
      const std::string check = range_check(symbol, "run->errors");
      if (!check.empty()) out.line("if (!{}) return false;", check);
    }
  }

  void write_line(SourceWriter& out, const program::Assert& check, const program::Line&, size_t) {
    const std::set<std::string> symbols = sym::symbols_of(check.condition);
    out.open("if (!({}))", integers().condition(check.condition));
    if (symbols.empty()) {
      out.line("return check_failed(run, {}, nullptr, 0);", quoted(check.message));
    } else {
      std::string values;
      for (const std::string& symbol : symbols) values += fmt::format("{}{{{}, {}}}", values.empty() ? "" : ", ", quoted(symbol), symbols_.at(symbol));
      out.line("const NamedValue values[] = {{{}}};", values);
      out.line("return check_failed(run, {}, values, {});", quoted(check.message), symbols.size());
    }
    out.close();
  }

  // ---- branches and loops
  std::string value_text(BufferId id) { return fmt::format("{{{}, false, {{{}}}}}", pointer(id), list(buffer(id).type.shape)); }
  std::string outer_values(const Program& nested) {
    std::string text;
    for (const std::string& symbol : nested.outer_symbols) text += (text.empty() ? "" : ", ") + symbols_.at(symbol);
    return text;
  }
  // Whether the buffer has memory before the line runs.
  bool is_placed(BufferId id, size_t index) const {
    const Storage& storage = layout_.storage_of(id);
    if (storage.place != Storage::Place::Dynamic) return true;
    const std::vector<int32_t>& births = layout_.births[index];
    return std::find(births.begin(), births.end(), layout_.storage[static_cast<size_t>(id.index)]) != births.end();
  }
  // The values that a branch or a loop made become those of the line's buffers. `results` is an array of Value, or of Result.
  void take_results(SourceWriter& out, const std::vector<BufferId>& outputs, const std::vector<std::string>& defines, size_t index, const std::function<std::string(size_t)>& made,
                    bool into_place) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].valid() || !is_placed(outputs[i], index)) continue;
      const op::TensorType& type = buffer(outputs[i]).type;
      if (type.rank() > 0) out.line("if (!expect_sizes(run, {}, {}, {{{}}})) return false;", quoted(buffer(outputs[i]).name), made(i), list(type.shape));
      if (into_place) continue;
      const std::string bytes = value(bytes_expr(type));
      out.line("if ({} > 0) memcpy({}, {}.data, static_cast<size_t>({}));", bytes, pointer(outputs[i]), made(i), bytes);
      out.line("if ({}.owned) give_back(run, {}.data);", made(i), made(i));
    }
    for (const std::string& symbol : defines) define_from(out, symbol, outputs, made);
    check_ranges(out, defines);
    if (layout_.opens[index] > 0) open_derived(out, layout_.opens[index]);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].valid()) {
        out.line("if ({}.owned) give_back(run, {}.data);", made(i), made(i));
      } else if (!is_placed(outputs[i], index)) {
        adopt(out, outputs[i], made(i));
      }
    }
  }
  void define_from(SourceWriter& out, const std::string& symbol, const std::vector<BufferId>& outputs, const std::function<std::string(size_t)>& made) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].valid()) continue;
      const op::Shape& shape = buffer(outputs[i]).type.shape;
      for (size_t d = 0; d < shape.size(); ++d) {
        if (!shape[d].is_symbol() || shape[d].name() != symbol) continue;
        out.line("const i64 {} = {}.sizes[{}];", symbols_.at(symbol), made(i), d);
        return;
      }
    }
    throw InternalError(fmt::format("program {}: no result has the size {} that its line defines", program_.name, symbol));
  }
  void adopt(SourceWriter& out, BufferId id, const std::string& made) {
    const Storage& storage = layout_.storage_of(id);
    const op::TensorType& type = buffer(id).type;
    if (type.rank() > 0) out.line("if (!expect_sizes(run, {}, {}, {{{}}})) return false;", quoted(buffer(id).name), made, list(type.shape));
    const std::string& name = pointer_variable(storage.buffer);
    const std::string bytes = value(bytes_expr(type));
    if (storage.index >= 0) {
      out.line("if (!deliver(run, &results[{}], {}, {}, {})) return false;", storage.index, made, bytes, quoted(program_.outputs[static_cast<size_t>(storage.index)].name));
      out.line("char* const {} = results[{}].value.data;   // {}", name, storage.index, type_text(type));
    } else {
      out.line("if (!keep(run, &{}, {})) return false;", made, bytes);
      out.line("char* const {} = {}.data;   // {}", name, made, type_text(type));
    }
  }

  void write_line(SourceWriter& out, const program::If& branch, const program::Line&, size_t index) {
    const std::string name = names_.declare(fmt::format("branch_{}", index));
    const Expr count = op::count_of(buffer(branch.condition).type.shape);
    if (!count.is_const(1)) {
      out.line("if ({} != 1) return fail(run->errors, FUSELOOM_CHECK_FAILED, \"%s: a condition has %lld elements, expected one\", {}, static_cast<i64>({}));", value(count),
               quoted(buffer(branch.condition).name), value(count));
    }
    // 1. Where the results go.
    if (!branch.outputs.empty()) {
      out.open("Result {}[] =", name);
      for (const BufferId id : branch.outputs) {
        if (id.valid() && is_placed(id, index)) {
          out.line("{{{{{}, false, {{}}}}, {}, -1, -1}},", pointer(id), value(bytes_expr(buffer(id).type)));
        } else {
          out.line("{{{{nullptr, false, {{}}}}, 0, -1, -1}},");
        }
      }
      out.close("};");
    }
    // 2. One of the programs.
    const auto call = [&](const Program& nested, std::string_view part) {
      const std::string id = nested_id(id_, index, part), outer = outer_values(nested);
      if (!outer.empty()) out.line("const i64 outer_values[] = {{{}}};", outer);
      std::string inputs;
      for (const BufferId input : branch.inputs) inputs += (inputs.empty() ? "" : ", ") + value_text(input);
      if (!inputs.empty()) out.line("const Value values[] = {{{}}};", inputs);
      out.line("if (!run_{}(run, {}, {}, {})) return false;", id, outer.empty() ? "nullptr" : "outer_values", inputs.empty() ? "nullptr" : "values", branch.outputs.empty() ? "nullptr" : name);
    };
    out.open("if (integer_at<{}>({}, 0) != 0)", integer_type(buffer(branch.condition).type.dtype), pointer(branch.condition));
    call(*branch.then, "then");
    out.close();
    out.open("else");
    call(*branch.otherwise, "else");
    out.close();
    take_results(out, branch.outputs, branch.defines, index, [&](size_t i) { return fmt::format("{}[{}].value", name, i); }, true);
  }

  void write_line(SourceWriter& out, const program::While& loop, const program::Line&, size_t index) {
    const std::string name = names_.declare(fmt::format("loop_{}", index)), inputs = names_.declare(name + "_inputs"), finals = names_.declare(name + "_finals"),
                      trips = names_.declare(name + "_trips");
    const Program& body = *loop.body;
    const size_t carried = static_cast<size_t>(loop.carried), scans = static_cast<size_t>(loop.scans);
    // 1. The values that the first iteration reads; the two in front are the iteration and the condition.
    out.open("Value {}[] =", inputs);
    out.line("{{nullptr, false, {{}}}},");
    out.line("{{nullptr, false, {{}}}},");
    for (const BufferId id : loop.inputs) out.line("{},", value_text(id));
    out.close("};");
    out.line("Value {}[{}];", finals, std::max<size_t>(carried + scans, 1));
    out.line("i64 {} = 0;", trips);
    // 2. The loop.
    out.open("");
    const std::string outer = outer_values(body);
    if (!outer.empty()) out.line("const i64 outer_values[] = {{{}}};", outer);
    std::string ranks, element_bytes;
    for (const program::Output& output : body.outputs) {
      ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", output.type.rank());
      element_bytes += fmt::format("{}{}", element_bytes.empty() ? "" : ", ", dtype_bytes(output.type.dtype));
    }
    out.line("static const int32_t ranks[] = {{{}}};", ranks);
    out.line("static const i64 element_bytes[] = {{{}}};", element_bytes);
    const std::string most = loop.trip_count.valid() ? fmt::format("integer_at<{}>({}, 0)", integer_type(buffer(loop.trip_count).type.dtype), pointer(loop.trip_count)) : "INT64_MAX";
    const std::string condition = loop.condition.valid() ? fmt::format("integer_at<{}>({}, 0) != 0", integer_type(buffer(loop.condition).type.dtype), pointer(loop.condition)) : "true";
    out.line("const Loop loop = {{run_{}, {}, {}, {}, {}, {}, {}, ranks, element_bytes}};", nested_id(id_, index, "body"), outer.empty() ? "nullptr" : "outer_values", most, condition,
             loop.carried, loop.inputs.size() - carried, loop.scans);
    out.line("Result body_results[{}];", body.outputs.size());
    out.line("{} = run_loop(run, &loop, {}, body_results, {});", trips, inputs, finals);
    out.line("if ({} < 0) return false;", trips);
    out.close();
    // 3. Without iterations, stacked results are empty; the sizes that the loop itself would define are 0.
    if (scans > 0) {
      out.open("if ({} == 0)", trips);
      for (size_t i = 0; i < scans; ++i) {
        const BufferId id = loop.outputs[carried + i];
        if (!id.valid()) continue;
        const op::Shape& shape = buffer(id).type.shape;
        for (size_t d = 1; d < shape.size(); ++d) {
          const bool known = layout_.stage_of(shape[d]) < layout_.opens[index] || layout_.opens[index] == 0;
          if (known) out.line("{}[{}].sizes[{}] = {};", finals, carried + i, d, value(shape[d]));
        }
        out.line("{}[{}].owned = false;", finals, carried + i);
      }
      out.close();
    }
    take_results(out, loop.outputs, loop.defines, index, [&](size_t i) { return fmt::format("{}[{}]", finals, i); }, false);
    if (loop.outputs.empty()) out.line("(void){};", trips);
  }

  // ---- values that somebody wants to see (B20)
  void observe(SourceWriter& out, const program::Line& line, size_t index) {
    std::set<int32_t> seen;
    for (const BufferId id : program::buffers_of(line)) {
      const Storage& storage = layout_.storage_of(id);
      if (buffer(storage.buffer).kind != BufferKind::Temporary || !seen.insert(id.index).second) continue;
      bool written = first_line_of(id) == static_cast<int32_t>(index);
      if (const auto* launch = std::get_if<program::Launch>(&line.what)) {
        for (const auto& [to, from] : launch->in_place) written = written || to == id;
      }
      if (!written || buffer(id).type.rank() > kMaxRank) continue;
      out.line("FUSELOOM_OBSERVE({}, {}, {}, {}, {}{}{});", quoted(buffer(id).name), quoted(line.origin), dtype_constant(buffer(id).type.dtype), pointer(id), buffer(id).type.rank(),
               buffer(id).type.rank() > 0 ? ", " : "", list(buffer(id).type.shape));
    }
  }
  int32_t first_line_of(BufferId id) {
    if (ranges_.empty()) ranges_ = program::live_ranges(program_);
    return ranges_[static_cast<size_t>(program::storage_of(program_, id).index)].first;
  }

  // ---- results
  void finish_results(SourceWriter& out) {
    if (program_.outputs.empty()) return;
    out.text_line("");
    out.line("// results");
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      const program::Output& output = program_.outputs[i];
      if (layout_.direct[i] < 0) {
        const Expr bytes = bytes_expr(output.type);
        const Expr offset = program::byte_offset(program_, output.buffer) + output.offset * dtype_bytes(output.type.dtype);
        const std::string& root = pointer_variable(layout_.storage_of(output.buffer).buffer);
        const std::string from = offset.is_const(0) ? root : fmt::format("{} + {}", root, integers().term(offset));
        out.line("if (!place(run, &results[{}], {}, {})) return false;", i, value(bytes), quoted(output.name));
        if (output.strides && output.type.rank() > 0) {
          out.open("");
          out.line("const i64 sizes[] = {{{}}};", list(output.type.shape));
          out.line("const i64 strides[] = {{{}}};", list(*output.strides));
          out.line("copy_strided(results[{}].value.data, {}, {}, sizes, strides, {});", i, from, dtype_bytes(output.type.dtype), output.type.rank());
          out.close();
        } else {
          out.line("if ({} > 0) memcpy(results[{}].value.data, {}, static_cast<size_t>({}));", value(bytes), i, from, value(bytes));
        }
      }
      for (size_t d = 0; d < output.type.shape.size(); ++d) out.line("results[{}].value.sizes[{}] = {};", i, d, value(output.type.shape[d]));
    }
  }

 public:
  // result_sizes of the outermost program.
  std::string result_sizes() {
    close_derived();
    for (const Expr& expr : derived_order_) derived_.at(expr).open = derived_.at(expr).stage == 0;
    SourceWriter body;
    body.open("");
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      const op::TensorType& type = program_.outputs[i].type;
      const bool known = layout_.stage_of(type.shape) == 0;
      for (size_t d = 0; known && d < type.shape.size(); ++d) body.line("results[{}].value.sizes[{}] = {};", i, d, value(type.shape[d]));
      body.line("results[{}].bytes = {};", i, known ? value(bytes_expr(type)) : "-1");
    }
    const std::string text = body.text().substr(2);
    SourceWriter out;
    const auto mentioned = [&](const std::string& name) {
      if (mentions(text, name)) out.line("const i64 {} = plan->{};", name, name);
      return mentions(text, name);
    };
    SourceWriter head;
    out.open("");
    bool reads = false;
    for (const program::SymbolBinding& binding : layout_.bindings) reads = mentioned(symbols_.at(binding.symbol)) || reads;
    for (const Expr& expr : derived_order_) {
      if (derived_.at(expr).stage == 0) reads = mentioned(derived_.at(expr).name) || reads;
    }
    const std::string sizes = out.text().substr(2);
    head.open("static void result_sizes(const void*{}, Result*{})", reads ? " state" : "", program_.outputs.empty() ? "" : " results");
    if (reads) head.line("const Plan_main* const plan = &static_cast<const State*>(state)->main;");
    head.append(sizes + text);
    head.close();
    return head.text();
  }

 private:
  struct Derived {
    std::string name;
    int32_t stage = 0;
    bool open = false;
  };
  const Program& program_;
  const std::string id_;
  VariantText& variant_;
  const Layout layout_;
  NameScope names_;
  std::map<std::string, std::string> symbols_;     // C variables
  std::vector<std::string> pointers_;              // by buffer
  std::map<Expr, Derived> derived_;
  std::vector<Expr> derived_order_;
  std::map<int32_t, int64_t> prepared_;            // by buffer
  std::vector<program::LiveRange> ranges_;
};

std::string_view target_features(const std::string& isa) {
  if (isa == "avx2") return "avx2,fma,f16c,bmi,bmi2,lzcnt,movbe,popcnt";
  if (isa == "avx512") return "avx2,fma,f16c,bmi,bmi2,lzcnt,movbe,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl";
  return "";
}

int isa_number(const std::string& isa) { return isa == "avx512" ? 3 : isa == "avx2" ? 2 : 1; }

std::string section(std::string_view title) { return fmt::format("\n// {:=<118}\n// {}\n// {:=<118}\n", "", title, ""); }

// Functions in `text` are compiled for these features. Empty: as the flags say.
std::string with_features(std::string_view features, const std::string& text) {
  if (features.empty()) return text;
  return fmt::format(
      "#if defined(__clang__)\n#pragma clang attribute push(__attribute__((target(\"{}\"))), apply_to = function)\n#else\n#pragma GCC push_options\n"
      "#pragma GCC target(\"{}\")\n#endif\n{}\n#if defined(__clang__)\n#pragma clang attribute pop\n#else\n#pragma GCC pop_options\n#endif\n",
      features, features, text);
}

constexpr std::string_view kKernelParameters = "void* const* buffers, const i64* sizes, char* scratch, i64 begin, i64 end";

// The kernels that users wrote for one instruction set, at the end of a file: the functions that its namespace has declared.
std::string source_kernels_text(const ModelVariant& variant, const std::string& scope, std::set<std::string>& helpers, bool pragmas) {
  if (variant.source_kernels.empty()) return "";
  const bool marks = !pragmas;   // a file that people read has its own line numbers
  std::string out = section(fmt::format("{}: kernels of ops of the user's own", variant.isa)) + helper_text(variant.source_kernels, helpers, marks);
  std::string kernels = fmt::format("namespace {{\nnamespace user_{} {{\n", variant.isa);
  for (const op::SourceKernelInstance& kernel : variant.source_kernels) kernels += namespace_text(kernel, marks);
  kernels += fmt::format("}}\n}}\nnamespace {} {{\nnamespace {} {{\n", scope, variant.isa);
  for (const op::SourceKernelInstance& kernel : variant.source_kernels) {
    kernels += fmt::format("static void {}({}) {{\n  ::user_{}::{}_::run(buffers, reinterpret_cast<const int64_t*>(sizes), scratch, begin, end);\n}}\n", kernel.name,
                           kKernelParameters, variant.isa, kernel.name);
  }
  return out + with_features(pragmas ? target_features(variant.isa) : "", kernels + "}\n}\n");
}

// The namespace of one instruction set. `pragmas`: it is compiled with flags for a lower one.
std::string variant_text(const ModelVariant& variant, const program::Weights& weights, bool pragmas) {
  VariantText text{.weights = weights};
  ProgramWriter main(*variant.program, "main", text);
  main.write();

  CppTarget target = variant.target;
  target.internal = true;
  std::vector<const kernel::Kernel*> kernels;
  for (const kernel::Kernel& kernel : variant.kernels) kernels.push_back(&kernel);
  const std::string_view features = pragmas ? target_features(variant.isa) : "";
  std::string out = section(fmt::format("{}: kernels", variant.isa));
  out += with_features(features, fmt::format("namespace {} {{\n", variant.isa) + to_cpp(kernels, target));
  for (const op::SourceKernelInstance& kernel : variant.source_kernels) out += fmt::format("static void {}({});\n", kernel.name, kKernelParameters);

  out += section(fmt::format("{}: programs", variant.isa)) + text.plans;
  std::string state, prepare;
  for (const std::string& id : text.programs) {
    state += fmt::format("  Plan_{} {};\n", id, id);
    prepare += fmt::format("{}prepare_{}(run)", prepare.empty() ? "" : " && ", id);
  }
  out += fmt::format("// One of every program: a program runs once at a time.\nstruct State {{\n{}}};\n\n", state);
  out += text.functions;
  out += fmt::format("static bool prepare(Run* run) {{ return {}; }}\n\n", prepare);
  out +=
      "static bool plan(void* state, const Value* inputs, int32_t threads, Errors* errors) {\n"
      "  return plan_main(&static_cast<State*>(state)->main, nullptr, inputs, threads, errors);\n}\n\n"
      "static void memory(const void* state, i64* arena, i64* scratch) {\n"
      "  *arena = align_up(static_cast<const State*>(state)->main.arena_bytes);\n"
      "  *scratch = static_cast<const State*>(state)->main.scratch_bytes;\n}\n\n";
  out += main.result_sizes();
  out += fmt::format("}}  // namespace {}\n\n", variant.isa);
  out += fmt::format("extern const Variant kVariant_{} = {{{}, sizeof({}::State), {}, {}::prepare, {}::plan, {}::memory, {}::result_sizes, {}::run_main}};\n", variant.isa,
                     isa_number(variant.isa), variant.isa, text.prepared_bytes, variant.isa, variant.isa, variant.isa, variant.isa, variant.isa);
  return out;
}

// What the model is, as constant data.
std::string info_text(const Model& model) {
  const Program& program = *model.variants[0].program;
  SourceWriter out;
  const auto values = [&](std::string_view kind, size_t count, const auto& name, const auto& type) {
    for (size_t i = 0; i < count; ++i) {
      if (type(i).shape.empty()) continue;
      std::string sizes;
      for (const Expr& size : type(i).shape) sizes += (sizes.empty() ? "" : ", ") + quoted(sym::to_string(size));
      out.line("static const char* const k{}Sizes{}[] = {{{}}};", kind, i, sizes);
    }
    out.open("static const fuseloom_value_info k{}s[] =", kind);
    for (size_t i = 0; i < count; ++i)
      out.line("{{{}, {}, {}, {}}},", quoted(name(i)), dtype_constant(type(i).dtype), type(i).rank(), type(i).shape.empty() ? "nullptr" : fmt::format("k{}Sizes{}", kind, i));
    if (count == 0) out.line("{{nullptr, 0, 0, nullptr}},");
    out.close("};");
  };
  values("Input", program.input_types.size(), [&](size_t i) { return program.input_names[i]; }, [&](size_t i) -> const op::TensorType& { return program.input_types[i]; });
  values("Output", program.outputs.size(), [&](size_t i) { return program.outputs[i].name; }, [&](size_t i) -> const op::TensorType& { return program.outputs[i].type; });
  std::set<std::string> symbols;
  for (const op::TensorType& type : program.input_types) {
    for (const Expr& size : type.shape) sym::collect_symbols(size, symbols);
  }
  out.open("static const fuseloom_symbol_info kSymbols[] =");
  for (const std::string& symbol : symbols) {
    const auto fact = program.facts.symbols.find(symbol);
    const sym::Range range = fact == program.facts.symbols.end() ? sym::Facts::size() : fact->second;
    const int64_t low = std::max<int64_t>(range.low, 0), multiple = std::max<int64_t>(range.divisor, 1);
    const auto typical = model.typical.find(symbol);
    const int64_t size = typical != model.typical.end() ? typical->second : std::min((std::max<int64_t>(low, 1) + multiple - 1) / multiple * multiple, range.high);
    out.line("{{{}, {}, {}, {}, {}}},", quoted(symbol), low, range.high == INT64_MAX ? "INT64_MAX" : std::to_string(range.high), multiple, size);
  }
  if (symbols.empty()) out.line("{{nullptr, 0, 0, 0, 0}},");
  out.close("};");
  // For the benchmark: the sizes of inputs from those of symbols, in the order above.
  std::map<std::string, std::string> places;
  for (const std::string& symbol : symbols) places[symbol] = fmt::format("symbols[{}]", places.size());
  const IntegerText integers{.name = [&](const std::string& symbol) { return places.at(symbol); },
                             .helper = [](std::string_view name) { return std::string(name.substr(0, name.rfind("_i64"))); },
                             .facts = &program.facts};
  out.text_line("#ifdef FUSELOOM_MAIN");
  out.open("static void input_sizes(const i64* symbols, i64 (*sizes)[FUSELOOM_MAX_RANK])");
  out.line("(void)symbols, (void)sizes;");
  for (size_t i = 0; i < program.input_types.size(); ++i) {
    for (size_t d = 0; d < program.input_types[i].shape.size(); ++d) out.line("sizes[{}][{}] = {};", i, d, integers.value(program.input_types[i].shape[d]));
  }
  out.close();
  out.text_line("#endif");
  std::string isas, variants;
  for (const ModelVariant& variant : model.variants) {
    isas += (isas.empty() ? "" : " ") + variant.isa;
    variants += (variants.empty() ? "" : ", ") + fmt::format("&kVariant_{}", variant.isa);
  }
  const bool embedded = !model.embedded_weights.empty() && !model.weights->empty();
  out.open("static const fuseloom_model_info kInfo =");
  out.line("sizeof(fuseloom_model_info), sizeof(fuseloom_value_info), sizeof(fuseloom_symbol_info),");
  out.line("{}, {},", quoted(model.name), quoted(model.compiler));
  out.line("{}, {}, {}, kInputs, kOutputs, kSymbols,", program.input_types.size(), program.outputs.size(), symbols.size());
  out.line("{}, {}, {}, {}", model.weights->bytes(), quoted(model.weights->hash()), embedded ? 1 : 0, quoted(isas));
  out.close("};");
  out.line("constexpr i64 kInputCount = {}, kOutputCount = {};", program.input_types.size(), program.outputs.size());
  out.line("static const Variant* const kVariants[] = {{{}}};", variants);
  return out.text();
}

std::string weights_text(const Model& model, const std::string& scope) {
  if (model.embedded_weights.empty() || model.weights->empty()) return "constexpr bool kWeightsAreEmbedded = false;\nstatic const char* const kEmbeddedWeights = nullptr;\n\n";
  return fmt::format(
      "// The weights, included by the assembler. Another path: -DFUSELOOM_WEIGHTS='\"path\"'.\n"
      "#ifndef FUSELOOM_WEIGHTS\n#define FUSELOOM_WEIGHTS {}\n#endif\n"
      "extern \"C\" __attribute__((visibility(\"hidden\"))) const char weights_of_{}[];\n"
      "asm(\".pushsection .rodata.weights_of_{}, \\\"a\\\"\\n\"\n"
      "    \".balign 64\\n\"\n"
      "    \".global weights_of_{}\\n\"\n"
      "    \".hidden weights_of_{}\\n\"\n"
      "    \"weights_of_{}: .incbin \\\"\" FUSELOOM_WEIGHTS \"\\\"\\n\"\n"
      "    \".popsection\\n\");\n"
      "constexpr bool kWeightsAreEmbedded = true;\nstatic const char* const kEmbeddedWeights = weights_of_{};\n\n",
      quoted(model.embedded_weights), scope, scope, scope, scope, scope, scope);
}

// A namespace that no other model has.
std::string scope_of(const Model& model, std::string_view content) {
  return fmt::format("{}_{}", model.name, base::hash_text(content).hex().substr(0, 12));
}

std::string describe(const Model& model) {
  const Program& program = *model.variants[0].program;
  std::string out = fmt::format("// {}, compiled by {}.\n//\n", comment(model.name), comment(model.compiler));
  for (size_t i = 0; i < program.input_types.size(); ++i)
    out += fmt::format("//   input   {}: {}\n", comment(program.input_names[i]), type_text(program.input_types[i]));
  for (const program::Output& output : program.outputs) out += fmt::format("//   output  {}: {}\n", comment(output.name), type_text(output.type));
  out += fmt::format(
      "//\n"
      "// C++17 for GCC 12 or Clang 14 and later; it needs the C library only, no exceptions and no run-time types.\n"
      "//   into a program:           c++ -std=c++17 -O2 -fwrapv -fno-strict-aliasing -c {}.cpp\n"
      "//   into a shared library:    ... -fPIC -fvisibility=hidden -shared\n"
      "//   its own benchmark:        ... -DFUSELOOM_MAIN {}.cpp -o {}\n"
      "// -DFUSELOOM_OBSERVABLE: calls fuseloom_arguments.observe for every value that is computed.\n",
      model.name, model.name, model.name);
  return out;
}

// Everything in front of the namespace.
std::string head_text() {
  std::string out =
      "#if defined(__clang__)\n"
      "#pragma STDC FP_CONTRACT OFF\n"
      "#elif defined(__GNUC__)\n"
      "#pragma GCC optimize(\"fp-contract=off\", \"wrapv\", \"no-strict-aliasing\", \"no-math-errno\", \"no-trapping-math\")\n"
      "#endif\n"
      "#ifdef FUSELOOM_MAIN\n"
      "#define FUSELOOM_PROFILE\n"
      "#endif\n"
      "#include <errno.h>\n#include <fcntl.h>\n#include <pthread.h>\n#include <sched.h>\n#include <signal.h>\n#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n"
      "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <sys/mman.h>\n#include <sys/stat.h>\n#include <time.h>\n#include <unistd.h>\n\n"
      "// ---- fuseloom/abi.h, as it was when this was compiled\n";
  return out + std::string(abi_header_text()) + "\n";
}

std::string exports_text(const Model& model, const std::string& scope) {
  return fmt::format(
      "// Every model has the function fuseloom_model, for dlopen, and one under its own name, for programs with several.\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) const fuseloom_api* {}_model(uint32_t abi_version);\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) const fuseloom_api* {}_model(uint32_t abi_version) {{\n"
      "  return abi_version >= 1 && abi_version <= FUSELOOM_ABI_VERSION ? &{}::kApi : nullptr;\n}}\n"
      "extern \"C\" __attribute__((visibility(\"default\"), weak)) const fuseloom_api* fuseloom_model(uint32_t abi_version) {{\n"
      "  return {}_model(abi_version);\n}}\n",
      model.name, model.name, scope, model.name);
}

void collect_calls(const Program& program, std::vector<std::string>& out) {
  for (const program::Line& line : program.lines) {
    if (const auto* call = std::get_if<program::Call>(&line.what)) out.push_back(line.origin.empty() ? call->op->name : fmt::format("{} ({})", call->op->name, line.origin));
    if (const auto* branch = std::get_if<program::If>(&line.what)) {
      collect_calls(*branch->then, out);
      collect_calls(*branch->otherwise, out);
    } else if (const auto* loop = std::get_if<program::While>(&line.what)) {
      collect_calls(*loop->body, out);
    }
  }
}

}  // namespace

std::vector<std::string> native_calls(const Program& program) {
  std::vector<std::string> calls;
  collect_calls(program, calls);
  return calls;
}

std::string c_identifier(std::string_view text) {
  std::string out;
  for (const char c : text) out += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return out.empty() || std::isdigit(static_cast<unsigned char>(out[0])) != 0 ? "m" + out : out;
}

std::string to_cpp(const Model& model) {
  std::string variants;
  for (const ModelVariant& variant : model.variants) variants += variant_text(variant, *model.weights, true);
  const std::string info = info_text(model);
  std::set<std::string> helpers;
  std::string user;
  for (const ModelVariant& variant : model.variants) user += source_kernels_text(variant, "FUSELOOM_SCOPE", helpers, true);
  const std::string scope = scope_of(model, variants + info + user);
  std::string out = describe(model) + head_text() + fmt::format("namespace {} {{\n", scope) + std::string(support_text());
  out += variants + section("the model") + info + "\n" + weights_text(model, scope) + std::string(interface_text());
  out += fmt::format("}}  // namespace {}\n\n", scope) + exports_text(model, scope);
  out += "\n#ifdef FUSELOOM_MAIN\n" + std::string(benchmark_text()) +
         fmt::format("\nint main(int argc, char** argv) {{ return {}::benchmark(argc, argv); }}\n#endif\n", scope);
  out += user;
  const std::string placeholder = "FUSELOOM_SCOPE";
  for (size_t at = out.find(placeholder); at != std::string::npos; at = out.find(placeholder, at + scope.size())) out.replace(at, placeholder.size(), scope);
  return out;
}

std::vector<std::string> to_cpp_units(const Model& model) {
  std::vector<std::string> bodies;
  std::string all, declarations;
  for (const ModelVariant& variant : model.variants) {
    std::set<std::string> helpers;
    bodies.push_back(variant_text(variant, *model.weights, false));
    all += bodies.back() + source_kernels_text(variant, "", helpers, false);
    declarations += fmt::format("extern const Variant kVariant_{};\n", variant.isa);
  }
  const std::string info = info_text(model);
  const std::string scope = scope_of(model, all + info);
  const std::string head = head_text() + fmt::format("namespace {} {{\n", scope) + std::string(support_text());
  std::vector<std::string> units;
  for (size_t i = 0; i < bodies.size(); ++i) {
    std::set<std::string> helpers;
    units.push_back(head + bodies[i] + fmt::format("}}  // namespace {}\n", scope) + source_kernels_text(model.variants[i], scope, helpers, false));
  }
  units.push_back(head + declarations + info + "\n" + weights_text(model, scope) + std::string(interface_text()) + fmt::format("}}  // namespace {}\n\n", scope) +
                  exports_text(model, scope));
  return units;
}

}  // namespace fuseloom::emit
