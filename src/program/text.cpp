// Program text: docs/ir-program.md has the grammar.
#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_map>

#include "base/check.h"
#include "base/lexer.h"
#include "program/line.h"
#include "program/program.h"

namespace fuseloom::program {
namespace {

// ---- printing --------------------------------------------------------------------------------------------------------

// Whether a lexer reads the text as one identifier.
bool is_plain_name(const std::string& text) {
  const auto is_letter = [](char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_part = [&](char c) { return is_letter(c) || c == '.' || (c >= '0' && c <= '9'); };
  return !text.empty() && is_letter(text[0]) && std::all_of(text.begin(), text.end(), is_part);
}

class Printer {
 public:
  std::string print(const Program& program) {
    print_program(program);
    out_ += "\n";
    return std::move(out_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  void indent() { out_.append(static_cast<size_t>(2 * depth_), ' '); }

  static std::string name_of(const Program& program, BufferId id) {
    return id.valid() ? "%" + program.buffer(id).name : std::string("_");
  }
  static std::string list_of(const Program& program, const std::vector<BufferId>& ids) {
    std::string text;
    for (const BufferId id : ids) text += (text.empty() ? "" : ", ") + name_of(program, id);
    return text;
  }
  static std::string list_of(const std::vector<sym::Expr>& exprs) {
    std::string text;
    for (const sym::Expr& expr : exprs) text += (text.empty() ? "" : ", ") + sym::to_string(expr);
    return text;
  }

  void print_program(const Program& program) {
    add("program {}", is_plain_name(program.name) ? program.name : base::quote(program.name));
    if (program.device != Device::Cpu) add(" on {} ", device_name(program.device));
    out_ += "(";
    for (size_t i = 0; i < program.input_types.size(); ++i) {
      const std::string& name = program.input_names[i];
      const auto buffer = std::find_if(program.buffers.begin(), program.buffers.end(), [&](const Buffer& each) {
        return each.kind == BufferKind::Input && each.index == static_cast<int32_t>(i);
      });
      const std::string held = buffer == program.buffers.end() ? "_" : "%" + buffer->name;
      add("{}{}: {}", i == 0 ? "" : ", ", held, op::to_string(program.input_types[i]));
      if (held != "%" + name) add(" {}", base::quote(name));
    }
    out_ += ")";
    if (!program.outer_symbols.empty()) add(" outer {{{}}}", fmt::join(program.outer_symbols, ", "));
    print_facts(program.facts);
    out_ += " {\n";
    ++depth_;
    for (const Buffer& buffer : program.buffers) print_buffer(program, buffer);
    if (!program.init.empty()) {
      indent();
      out_ += "init {\n";
      ++depth_;
      for (const Line& line : program.init) print_line(program, line);
      --depth_;
      indent();
      out_ += "}\n";
    }
    for (const Line& line : program.lines) print_line(program, line);
    if (!program.placement_order.empty()) {
      std::vector<BufferId> order;
      for (const int32_t index : program.placement_order) order.push_back(BufferId{index});
      indent();
      add("place {}\n", list_of(program, order));
    }
    indent();
    out_ += "return";
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      const Output& output = program.outputs[i];
      add("{} {} = {}: {}", i == 0 ? "" : ",", base::quote(output.name), name_of(program, output.buffer), op::to_string(output.type));
      if (output.strides) add(" strides {}", op::to_string(*output.strides));
      if (!output.offset.is_const(0)) add(" offset {}", sym::to_string(output.offset));
    }
    out_ += "\n";
    --depth_;
    indent();
    out_ += "}";
  }

  void print_facts(const sym::Facts& facts) {
    const auto bound = [](int64_t value) {
      return value == sym::Range::kMin ? std::string("-inf") : value == sym::Range::kMax ? std::string("inf") : fmt::format("{}", value);
    };
    std::vector<std::string> parts;
    for (const auto& [symbol, range] : facts.symbols) {
      parts.push_back(fmt::format("{} in {} .. {}", symbol, bound(range.low), bound(range.high)));
      if (range.divisor != 1) parts.back() += fmt::format(" multiple {}", range.divisor);
    }
    for (const auto& [symbol, end] : facts.upper_exclusive) parts.push_back(fmt::format("{} below {}", symbol, sym::to_string(end)));
    if (!parts.empty()) add(" symbols {{{}}}", fmt::join(parts, ", "));
    if (!facts.nonzero.empty()) add(" nonzero {{{}}}", list_of(facts.nonzero));
  }

  void print_buffer(const Program& program, const Buffer& buffer) {
    const std::string declared = fmt::format("%{}: {}", buffer.name, op::to_string(buffer.type));
    switch (buffer.kind) {
      case BufferKind::Input: return;  // in the head of the program
      case BufferKind::Constant: {
        const op::Attrs value{{"value", program.constants[static_cast<size_t>(buffer.index)]}};
        indent();
        add("constant {} {}\n", declared, op::to_string(value));
        return;
      }
      case BufferKind::Prepared: indent(); add("prepared {}\n", declared); return;
      case BufferKind::Temporary: indent(); add("temporary {}\n", declared); return;
      case BufferKind::View:
        indent();
        add("view {} of {}", declared, name_of(program, buffer.base));
        if (!buffer.offset.is_const(0)) add(" offset {}", sym::to_string(buffer.offset));
        out_ += "\n";
        return;
    }
  }

  void print_defines(const std::vector<std::string>& defines) {
    if (!defines.empty()) add(" defines {{{}}}", fmt::join(defines, ", "));
  }
  void print_results(const Program& program, const std::vector<BufferId>& outputs) {
    if (!outputs.empty()) add("{} = ", list_of(program, outputs));
  }

  void print_line(const Program& program, const Line& line) {
    indent();
    std::visit([&](const auto& what) { print(program, what); }, line.what);
    if (!line.nodes.empty()) add(" nodes [{}]", fmt::join(line.nodes, ", "));
    if (!line.origin.empty()) add(" from {}", base::quote(line.origin));
    out_ += "\n";
  }

  void print(const Program& program, const Launch& launch) {
    const bool single = launch.variants.size() == 1 && launch.variants[0].condition.is_const(1);
    add("launch {}({})", single ? kernel_of(program, launch.variants[0]) : "", list_of(program, launch.buffers));
    if (!launch.sizes.empty()) add(" sizes ({})", list_of(launch.sizes));
    if (single) print_how(launch.variants[0]);
    if (!launch.work.is_const(1)) add(" work {}", sym::to_string(launch.work));
    if (!launch.bytes.is_const(0)) add(" bytes {}", sym::to_string(launch.bytes));
    if (!launch.in_place.empty()) {
      out_ += " in_place (";
      for (size_t i = 0; i < launch.in_place.size(); ++i) {
        const auto& [written, read] = launch.in_place[i];
        add("{}{} over {}", i == 0 ? "" : ", ", name_of(program, written), name_of(program, read));
      }
      out_ += ")";
    }
    if (launch.product) print_product(program, *launch.product);
    if (single) return;
    out_ += " variants {\n";
    ++depth_;
    for (const Variant& variant : launch.variants) {
      indent();
      if (!variant.condition.is_const(1)) add("when {}: ", sym::to_string(variant.condition));
      out_ += kernel_of(program, variant);
      print_how(variant);
      out_ += "\n";
    }
    --depth_;
    indent();
    out_ += "}";
  }
  void print_product(const Program& program, const MatrixProduct& product) {
    add(" product ({}, {}, {}, {})", sym::to_string(product.batch), sym::to_string(product.rows), sym::to_string(product.columns), sym::to_string(product.depth));
    const auto print_operand = [&](std::string_view name, const MatrixProduct::Operand& operand) {
      add(" {} {} strides ({}, {}, {})", name, operand.buffer, sym::to_string(operand.batch_stride), sym::to_string(operand.row_stride),
          sym::to_string(operand.column_stride));
      if (!operand.offset.is_const(0)) add(" offset {}", sym::to_string(operand.offset));
    };
    print_operand("left", product.left);
    print_operand("right", product.right);
    print_operand("result", product.result);
    if (product.bias >= 0) {
      add(" bias {}", product.bias);
      if (!product.bias_offset.is_const(0)) add(" offset {}", sym::to_string(product.bias_offset));
    }
    if (product.activation != Activation::None) add(" activation {}", activation_name(product.activation));
    add(" workspace {}", name_of(program, product.workspace));
  }
  static std::string kernel_of(const Program& program, const Variant& variant) { return program.kernels[static_cast<size_t>(variant.kernel)].name; }
  // What differs from Variant's own values.
  void print_how(const Variant& variant) {
    const auto is_one = [](const sym::Expr& expr) { return expr.is_const(1); };
    if (!variant.extent.is_const(1)) add(" extent {}", sym::to_string(variant.extent));
    if (!variant.scratch_bytes.is_const(0)) add(" scratch {}", sym::to_string(variant.scratch_bytes));
    if (!std::all_of(variant.grid.begin(), variant.grid.end(), is_one)) add(" grid ({})", list_of({variant.grid.begin(), variant.grid.end()}));
    if (variant.block != Variant().block) add(" block ({})", fmt::join(variant.block, ", "));
    if (variant.cluster != Variant().cluster) add(" cluster ({})", fmt::join(variant.cluster, ", "));
    if (!variant.shared_bytes.is_const(0)) add(" shared {}", sym::to_string(variant.shared_bytes));
    if (variant.cooperative) out_ += " cooperative";
  }
  void print(const Program& program, const Call& call) {
    print_results(program, call.outputs);
    add("call {}({})", call.op->name, list_of(program, call.inputs));
    const std::string attrs = op::to_string(call.attrs);
    if (!attrs.empty()) out_ += " " + attrs;
    print_defines(call.defines);
  }
  void print(const Program& program, const Copy& copy) { add("copy {} to {}", name_of(program, copy.from), name_of(program, copy.to)); }
  void print(const Program& program, const ReadSymbols& read) {
    add("read {}", name_of(program, read.from));
    print_defines(read.defines);
  }
  void print(const Program&, const Assert& check) { add("assert {} {}", sym::to_string(check.condition), base::quote(check.message)); }
  void print(const Program& program, const If& branch) {
    print_results(program, branch.outputs);
    add("if {}({})", name_of(program, branch.condition), list_of(program, branch.inputs));
    print_defines(branch.defines);
    out_ += " then ";
    print_program(*branch.then);
    out_ += " else ";
    print_program(*branch.otherwise);
  }
  void print(const Program& program, const While& loop) {
    print_results(program, loop.outputs);
    add("while {}, {} ({}) carried {} scans {}", name_of(program, loop.trip_count), name_of(program, loop.condition),
        list_of(program, loop.inputs), loop.carried, loop.scans);
    print_defines(loop.defines);
    out_ += " body ";
    print_program(*loop.body);
  }

  std::string out_;
  int depth_ = 0;
};

// ---- parsing ---------------------------------------------------------------------------------------------------------

// Programs nest as deeply as the control flow of the model; text that nests deeper is an attack on the stack.
constexpr int kDeepest = 200;

class Parser {
 public:
  Parser(std::string_view text, const op::OpTable& table, std::string where, const op::ConstantPool& pool)
      : where_(where), lexer_(text, std::move(where)), table_(table), pool_(pool) {}

  Program parse() {
    Program program = parse_nested();
    if (!lexer_.at_end()) lexer_.fail("expected the end of the text after the program");
    return program;
  }

 private:
  // The names of one program: nested ones have their own.
  struct Scope {
    Program program;
    std::unordered_map<std::string, BufferId> buffers;
    std::unordered_map<std::string, int32_t> kernels;
  };

  [[noreturn]] void fail_at(const base::Token& token, std::string_view words) const {
    throw UserError(fmt::format("{}:{}:{}: {}", where_, token.line, token.column, words));
  }

  // open item "," item ... close
  template <class Item>
  void parse_list(std::string_view open, std::string_view close, Item item) {
    lexer_.expect(open);
    for (bool first = true; !lexer_.accept(close); first = false) {
      if (!first) lexer_.expect(",");
      item();
    }
  }
  std::vector<sym::Expr> parse_exprs(std::string_view open, std::string_view close) {
    std::vector<sym::Expr> exprs;
    parse_list(open, close, [&] { exprs.push_back(sym::parse_expr(lexer_)); });
    return exprs;
  }
  std::vector<std::string> parse_defines() {
    std::vector<std::string> names;
    if (lexer_.accept("defines")) parse_list("{", "}", [&] { names.push_back(lexer_.expect_name()); });
    return names;
  }

  // ---- buffers
  void declare(Scope& scope, const base::Token& at, Buffer buffer) {
    const std::string name = buffer.name;
    const BufferId id = scope.program.add_buffer(std::move(buffer));
    if (!scope.buffers.emplace(name, id).second) fail_at(at, fmt::format("%{} is declared twice", name));
  }
  BufferId use(const Scope& scope) {
    const base::Token token = lexer_.peek();
    const auto found = scope.buffers.find(lexer_.expect_value());
    if (found == scope.buffers.end()) fail_at(token, fmt::format("%{} is not declared", token.text));
    return found->second;
  }
  BufferId use_or_absent(const Scope& scope) { return lexer_.accept("_") ? BufferId{} : use(scope); }
  std::vector<BufferId> use_list(const Scope& scope) {
    std::vector<BufferId> ids;
    parse_list("(", ")", [&] { ids.push_back(use_or_absent(scope)); });
    return ids;
  }

  void parse_input(Scope& scope) {
    const base::Token at = lexer_.peek();
    const std::optional<std::string> held = lexer_.accept("_") ? std::nullopt : std::optional(lexer_.expect_value());
    lexer_.expect(":");
    Program& program = scope.program;
    const int32_t index = static_cast<int32_t>(program.input_types.size());
    program.input_types.push_back(op::parse_type(lexer_));
    if (held) declare(scope, at, {.name = *held, .kind = BufferKind::Input, .type = program.input_types.back(), .index = index});
    const bool named = !held || lexer_.peek().kind == base::Token::Kind::String;
    program.input_names.push_back(named ? lexer_.expect_string() : *held);
  }

  // True if a declaration starts here.
  bool parse_buffer(Scope& scope) {
    constexpr std::pair<std::string_view, BufferKind> kKinds[] = {{"constant", BufferKind::Constant},
                                                                  {"prepared", BufferKind::Prepared},
                                                                  {"temporary", BufferKind::Temporary},
                                                                  {"view", BufferKind::View}};
    const auto kind = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& each) { return lexer_.peek().is(each.first); });
    if (kind == std::end(kKinds)) return false;
    lexer_.next();
    const base::Token at = lexer_.peek();
    Buffer buffer{.name = lexer_.expect_value(), .kind = kind->second};
    lexer_.expect(":");
    buffer.type = op::parse_type(lexer_);
    if (buffer.kind == BufferKind::Constant) {
      const base::Token brace = lexer_.peek();
      const op::Attrs attrs = op::parse_attrs(lexer_, pool_);
      const auto value = attrs.all().find("value");
      if (attrs.all().size() != 1 || value == attrs.all().end() || !std::holds_alternative<Tensor>(value->second))
        fail_at(brace, fmt::format("constant %{} needs {{value = <tensor>}}", buffer.name));
      buffer.index = static_cast<int32_t>(scope.program.constants.size());
      scope.program.constants.push_back(std::get<Tensor>(value->second));
    } else if (buffer.kind == BufferKind::View) {
      lexer_.expect("of");
      buffer.base = use(scope);
      if (lexer_.accept("offset")) buffer.offset = sym::parse_expr(lexer_);
    }
    declare(scope, at, std::move(buffer));
    return true;
  }

  // ---- programs
  Program parse_nested() {
    if (++depth_ > kDeepest) lexer_.fail(fmt::format("programs nest deeper than {}", kDeepest));
    lexer_.expect("program");
    Scope scope;
    Program& program = scope.program;
    program.name = lexer_.peek().kind == base::Token::Kind::String ? lexer_.expect_string() : lexer_.expect_name();
    if (lexer_.accept("on")) program.device = parse_device();
    parse_list("(", ")", [&] { parse_input(scope); });
    if (lexer_.accept("outer")) parse_list("{", "}", [&] { program.outer_symbols.push_back(lexer_.expect_name()); });
    if (lexer_.accept("symbols")) parse_list("{", "}", [&] { parse_fact(program.facts); });
    if (lexer_.accept("nonzero")) program.facts.nonzero = parse_exprs("{", "}");
    lexer_.expect("{");
    while (parse_buffer(scope)) continue;
    if (lexer_.accept("init")) {
      lexer_.expect("{");
      while (!lexer_.accept("}")) program.init.push_back(parse_line(scope));
    }
    while (!lexer_.peek().is("place") && !lexer_.peek().is("return")) program.lines.push_back(parse_line(scope));
    if (lexer_.accept("place")) {
      do program.placement_order.push_back(use(scope).index);
      while (lexer_.accept(","));
    }
    parse_list("return", "}", [&] { program.outputs.push_back(parse_output(scope)); });
    --depth_;
    return std::move(scope.program);
  }

  Device parse_device() {
    for (const Device device : {Device::Cpu, Device::Cuda}) {
      if (lexer_.accept(device_name(device))) return device;
    }
    lexer_.fail(fmt::format("expected cpu or cuda, found '{}'", lexer_.peek().text));
  }

  int64_t parse_bound() {
    if (lexer_.accept("inf")) return sym::Range::kMax;
    const bool negative = lexer_.accept("-");
    if (negative && lexer_.accept("inf")) return sym::Range::kMin;
    const int64_t value = lexer_.expect_integer();
    return negative ? -value : value;
  }
  void parse_fact(sym::Facts& facts) {
    const std::string symbol = lexer_.expect_name();
    if (lexer_.accept("below")) {
      facts.upper_exclusive[symbol] = sym::parse_expr(lexer_);
      return;
    }
    lexer_.expect("in");
    sym::Range range;
    range.low = parse_bound();
    lexer_.expect(".");
    lexer_.expect(".");
    range.high = parse_bound();
    if (lexer_.accept("multiple")) range.divisor = lexer_.expect_integer();
    facts.symbols[symbol] = range;
  }

  Output parse_output(const Scope& scope) {
    Output output{.name = lexer_.expect_string()};
    lexer_.expect("=");
    output.buffer = use(scope);
    lexer_.expect(":");
    output.type = op::parse_type(lexer_);
    if (lexer_.accept("strides")) output.strides = op::parse_shape(lexer_);
    if (lexer_.accept("offset")) output.offset = sym::parse_expr(lexer_);
    return output;
  }

  // ---- lines
  Line parse_line(Scope& scope) {
    std::vector<BufferId> outputs;
    if (lexer_.peek().kind == base::Token::Kind::Value || lexer_.peek().is("_")) {
      do outputs.push_back(use_or_absent(scope));
      while (lexer_.accept(","));
      lexer_.expect("=");
    }
    const base::Token at = lexer_.peek();
    Line line;
    if (lexer_.accept("call")) {
      line.what = parse_call(scope, std::move(outputs));
    } else if (lexer_.accept("if")) {
      line.what = parse_if(scope, std::move(outputs));
    } else if (lexer_.accept("while")) {
      line.what = parse_while(scope, std::move(outputs));
    } else if (!outputs.empty()) {
      fail_at(at, fmt::format("expected call, if or while after '=', found '{}'", at.text));
    } else if (lexer_.accept("launch")) {
      line.what = parse_launch(scope);
    } else if (lexer_.accept("copy")) {
      Copy copy{.from = use(scope)};
      lexer_.expect("to");
      copy.to = use(scope);
      line.what = copy;
    } else if (lexer_.accept("read")) {
      ReadSymbols read{.from = use(scope)};
      read.defines = parse_defines();
      line.what = std::move(read);
    } else if (lexer_.accept("assert")) {
      Assert check{.condition = sym::parse_expr(lexer_)};
      check.message = lexer_.expect_string();
      line.what = std::move(check);
    } else {
      fail_at(at, fmt::format("expected a line (launch, call, copy, read, assert, if, while), place or return, found '{}'", at.text));
    }
    if (lexer_.accept("nodes")) parse_list("[", "]", [&] { line.nodes.push_back(parse_int32()); });
    if (lexer_.accept("from")) line.origin = lexer_.expect_string();
    return line;
  }

  int32_t parse_int32() {
    const base::Token at = lexer_.peek();
    const int64_t value = lexer_.expect_integer();
    if (value < INT32_MIN || value > INT32_MAX) fail_at(at, fmt::format("{} does not fit 32 bits", value));
    return static_cast<int32_t>(value);
  }

  Launch parse_launch(Scope& scope) {
    Launch launch;
    const bool single = !lexer_.peek().is("(");
    Variant only;
    if (single) only.kernel = parse_kernel_name(scope);
    launch.buffers = use_list(scope);
    if (lexer_.accept("sizes")) launch.sizes = parse_exprs("(", ")");
    if (single) {
      parse_how(only);
      launch.variants.push_back(std::move(only));
    }
    if (lexer_.accept("work")) launch.work = sym::parse_expr(lexer_);
    if (lexer_.accept("bytes")) launch.bytes = sym::parse_expr(lexer_);
    if (lexer_.accept("in_place")) {
      parse_list("(", ")", [&] {
        const BufferId written = use(scope);
        lexer_.expect("over");
        launch.in_place.emplace_back(written, use(scope));
      });
    }
    if (lexer_.accept("product")) launch.product = parse_product(scope);
    if (single) return launch;
    lexer_.expect("variants");
    lexer_.expect("{");
    do {
      Variant variant;
      if (lexer_.accept("when")) {
        variant.condition = sym::parse_expr(lexer_);
        lexer_.expect(":");
      }
      variant.kernel = parse_kernel_name(scope);
      parse_how(variant);
      launch.variants.push_back(std::move(variant));
    } while (!lexer_.accept("}"));
    return launch;
  }
  // (a, b, ...) with so many expressions, as the words say.
  std::vector<sym::Expr> parse_exactly(size_t count, std::string_view words) {
    const base::Token at = lexer_.peek();
    std::vector<sym::Expr> exprs = parse_exprs("(", ")");
    if (exprs.size() != count) fail_at(at, fmt::format("{}, found {}", words, exprs.size()));
    return exprs;
  }
  MatrixProduct parse_product(const Scope& scope) {
    MatrixProduct product;
    const std::vector<sym::Expr> sizes = parse_exactly(4, "a product has 4 sizes (batch, rows, columns, depth)");
    product.batch = sizes[0];
    product.rows = sizes[1];
    product.columns = sizes[2];
    product.depth = sizes[3];
    const auto parse_operand = [&](std::string_view name, MatrixProduct::Operand& operand) {
      lexer_.expect(name);
      operand.buffer = parse_int32();
      lexer_.expect("strides");
      const std::vector<sym::Expr> strides = parse_exactly(3, "an operand has 3 strides (batch, row, column)");
      operand.batch_stride = strides[0];
      operand.row_stride = strides[1];
      operand.column_stride = strides[2];
      if (lexer_.accept("offset")) operand.offset = sym::parse_expr(lexer_);
    };
    parse_operand("left", product.left);
    parse_operand("right", product.right);
    parse_operand("result", product.result);
    if (lexer_.accept("bias")) {
      product.bias = parse_int32();
      if (lexer_.accept("offset")) product.bias_offset = sym::parse_expr(lexer_);
    }
    if (lexer_.accept("activation")) {
      const base::Token name = lexer_.peek();
      if (lexer_.accept(activation_name(Activation::Relu))) {
        product.activation = Activation::Relu;
      } else if (lexer_.accept(activation_name(Activation::GeluTanh))) {
        product.activation = Activation::GeluTanh;
      } else {
        fail_at(name, fmt::format("expected relu or gelu_tanh, found '{}'", name.text));
      }
    }
    lexer_.expect("workspace");
    product.workspace = use(scope);
    return product;
  }
  int32_t parse_kernel_name(Scope& scope) {
    const std::string name = lexer_.expect_name();
    const auto [kernel, added] = scope.kernels.emplace(name, static_cast<int32_t>(scope.program.kernels.size()));
    if (added) scope.program.kernels.push_back({name});
    return kernel->second;
  }
  void parse_how(Variant& variant) {
    if (lexer_.accept("extent")) variant.extent = sym::parse_expr(lexer_);
    if (lexer_.accept("scratch")) variant.scratch_bytes = sym::parse_expr(lexer_);
    if (lexer_.accept("grid")) {
      const base::Token at = lexer_.peek();
      const std::vector<sym::Expr> grid = parse_exprs("(", ")");
      if (grid.size() != 3) fail_at(at, fmt::format("a grid has 3 sizes, found {}", grid.size()));
      std::copy(grid.begin(), grid.end(), variant.grid.begin());
    }
    if (lexer_.accept("block")) variant.block = parse_triple("a block");
    if (lexer_.accept("cluster")) variant.cluster = parse_triple("a cluster");
    if (lexer_.accept("shared")) variant.shared_bytes = sym::parse_expr(lexer_);
    variant.cooperative = lexer_.accept("cooperative");
  }
  std::array<int32_t, 3> parse_triple(std::string_view what) {
    const base::Token at = lexer_.peek();
    std::vector<int32_t> sizes;
    parse_list("(", ")", [&] { sizes.push_back(parse_int32()); });
    if (sizes.size() != 3) fail_at(at, fmt::format("{} has 3 sizes, found {}", what, sizes.size()));
    return {sizes[0], sizes[1], sizes[2]};
  }

  Call parse_call(const Scope& scope, std::vector<BufferId> outputs) {
    const base::Token at = lexer_.peek();
    Call call{.op = table_.find(lexer_.expect_name())};
    if (call.op == nullptr) fail_at(at, fmt::format("unknown op '{}'", at.text));
    call.inputs = use_list(scope);
    call.outputs = std::move(outputs);
    if (lexer_.peek().is("{")) call.attrs = op::parse_attrs(lexer_, pool_);
    call.defines = parse_defines();
    return call;
  }

  If parse_if(const Scope& scope, std::vector<BufferId> outputs) {
    If branch{.condition = use(scope)};
    branch.inputs = use_list(scope);
    branch.outputs = std::move(outputs);
    branch.defines = parse_defines();
    lexer_.expect("then");
    branch.then = std::make_unique<Program>(parse_nested());
    lexer_.expect("else");
    branch.otherwise = std::make_unique<Program>(parse_nested());
    return branch;
  }

  While parse_while(const Scope& scope, std::vector<BufferId> outputs) {
    While loop;
    loop.trip_count = use_or_absent(scope);
    lexer_.expect(",");
    loop.condition = use_or_absent(scope);
    loop.inputs = use_list(scope);
    lexer_.expect("carried");
    loop.carried = parse_int32();
    lexer_.expect("scans");
    loop.scans = parse_int32();
    loop.outputs = std::move(outputs);
    loop.defines = parse_defines();
    lexer_.expect("body");
    loop.body = std::make_unique<Program>(parse_nested());
    return loop;
  }

  std::string where_;
  base::Lexer lexer_;
  const op::OpTable& table_;
  const op::ConstantPool& pool_;
  int depth_ = 0;
};

void collect_constants(const Program& program, op::ConstantPool& pool) {
  constexpr int64_t kPrintedWhole = 64;  // op/attrs.h: larger literals print as a hash
  const auto add = [&](const Tensor& tensor) {
    if (tensor.count() > kPrintedWhole) pool.emplace(op::tensor_hash(tensor), tensor);
  };
  for (const Tensor& constant : program.constants) add(constant);
  for (const Line& line : program.lines) {
    if (const Call* call = std::get_if<Call>(&line.what)) {
      for (const auto& [name, attr] : call->attrs.all()) {
        if (const Tensor* tensor = std::get_if<Tensor>(&attr)) add(*tensor);
      }
    } else if (const If* branch = std::get_if<If>(&line.what)) {
      collect_constants(*branch->then, pool);
      collect_constants(*branch->otherwise, pool);
    } else if (const While* loop = std::get_if<While>(&line.what)) {
      collect_constants(*loop->body, pool);
    }
  }
}

}  // namespace

std::string to_string(const Program& program) { return Printer().print(program); }

Program parse_program(std::string_view text, const op::OpTable& table, std::string where, const op::ConstantPool& pool) {
  return Parser(text, table, std::move(where), pool).parse();
}

op::ConstantPool constant_pool(const Program& program) {
  op::ConstantPool pool;
  collect_constants(program, pool);
  return pool;
}

}  // namespace fuseloom::program
