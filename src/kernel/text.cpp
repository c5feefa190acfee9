// Kernel text: docs/ir-kernel.md has the grammar.
#include <unordered_map>

#include "base/check.h"
#include "base/lexer.h"
#include "kernel/kernel.h"

namespace fuseloom::kernel {
namespace {

struct BindingName {
  Binding binding;
  std::string_view name;
};
constexpr BindingName kBindings[] = {
    {Binding::Serial, "serial"},   {Binding::Unroll, "unroll"},     {Binding::Core, "core"},
    {Binding::Vector, "vector"},   {Binding::GridX, "grid_x"},      {Binding::GridY, "grid_y"},
    {Binding::GridZ, "grid_z"},    {Binding::ClusterX, "cluster_x"}, {Binding::ThreadX, "thread_x"},
    {Binding::ThreadY, "thread_y"}, {Binding::ThreadZ, "thread_z"},
};
struct CombineName {
  op::Combine combine;
  std::string_view name;
};
constexpr CombineName kCombines[] = {
    {op::Combine::Add, "add"}, {op::Combine::Mul, "mul"}, {op::Combine::Max, "max"},       {op::Combine::Min, "min"},
    {op::Combine::Or, "or"},   {op::Combine::And, "and"}, {op::Combine::ArgMax, "argmax"}, {op::Combine::ArgMin, "argmin"},
};
constexpr std::string_view kSpaces[] = {"global", "shared", "local"};
constexpr std::string_view kAccesses[] = {"read", "write", "readwrite"};

std::string_view binding_name(Binding binding) {
  for (const BindingName& entry : kBindings)
    if (entry.binding == binding) return entry.name;
  throw InternalError("kernel text: unknown loop binding");
}

std::string_view combine_name(op::Combine combine) {
  for (const CombineName& entry : kCombines)
    if (entry.combine == combine) return entry.name;
  throw InternalError("kernel text: an accumulator or store without a combine");
}

std::optional<op::Combine> parse_combine(std::string_view name) {
  for (const CombineName& entry : kCombines)
    if (entry.name == name) return entry.combine;
  return std::nullopt;
}

bool is_arg(op::Combine combine) { return combine == op::Combine::ArgMax || combine == op::Combine::ArgMin; }

// ---- printing --------------------------------------------------------------------------------------------------------
class Printer {
 public:
  explicit Printer(const Kernel& kernel) : kernel_(kernel) {}

  std::string print() {
    out_ = fmt::format("kernel {}(", kernel_.name);
    bool first = true;
    for (const Buffer& buffer : kernel_.buffers) {
      if (buffer.space != Space::Global) continue;
      out_ += fmt::format("{}{} {}", first ? "" : ", ", kAccesses[static_cast<size_t>(buffer.access)], declaration(buffer));
      first = false;
    }
    out_ += ")";
    if (!kernel_.symbols.empty()) out_ += fmt::format(" sizes ({})", fmt::join(kernel_.symbols, ", "));
    print_facts();
    out_ += " {\n";
    depth_ = 1;
    for (const Buffer& buffer : kernel_.buffers)
      if (buffer.space != Space::Global)
        line("{} {}", kSpaces[static_cast<size_t>(buffer.space)], declaration(buffer));
    body(kernel_.body);
    return out_ + "}\n";
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    out_.append(static_cast<size_t>(depth_) * 2, ' ');
    out_ += fmt::format(format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  static std::string bound(int64_t value) {
    if (value == sym::Range::kMin) return "-inf";
    if (value == sym::Range::kMax) return "inf";
    return fmt::format("{}", value);
  }

  void print_facts() {
    const sym::Facts& facts = kernel_.facts;
    if (facts.symbols.empty() && facts.nonzero.empty()) return;
    std::vector<std::string> items;
    for (const auto& [name, range] : facts.symbols) {
      std::string item = fmt::format("{} in {} to {}", name, bound(range.low), bound(range.high));
      if (range.divisor != 1) item += fmt::format(" multiple {}", range.divisor);
      items.push_back(std::move(item));
    }
    for (const sym::Expr& expr : facts.nonzero) items.push_back("nonzero " + sym::to_string(expr));
    out_ += fmt::format(" facts ({})", fmt::join(items, ", "));
  }

  static std::string declaration(const Buffer& buffer) {
    return fmt::format("@{}: {}[{}]", buffer.name, dtype_name(buffer.dtype), sym::to_string(buffer.size));
  }
  std::string use(ScalarId id) const { return "%" + kernel_.scalar(id).name; }
  std::string definition(ScalarId id) const { return fmt::format("{}: {}", use(id), dtype_name(kernel_.scalar(id).dtype)); }
  std::string place(BufferId buffer, const sym::Expr& index) const {
    return fmt::format("@{}[{}]", kernel_.buffer(buffer).name, sym::to_string(index));
  }
  static std::string guards(const std::vector<sym::Expr>& guards) {
    if (guards.empty()) return "";
    std::vector<std::string> texts;
    for (const sym::Expr& guard : guards) texts.push_back(sym::to_string(guard));
    return fmt::format(" if ({})", fmt::join(texts, ", "));
  }

  std::string source(const Source& source, DType dtype) const {
    struct Visitor {
      const Printer& printer;
      DType dtype;
      std::string operator()(const Constant& c) const {
        if (is_complex(dtype))
          return fmt::format("constant ({}, {})", base::format_double(c.real), base::format_double(c.imag));
        if (is_float(dtype)) return "constant " + base::format_double(c.real);
        return fmt::format("constant {}", c.integer);
      }
      std::string operator()(const IndexValue& v) const { return "index " + sym::to_string(v.value); }
      std::string operator()(const Load& l) const {
        std::string text = "load " + printer.place(l.buffer, l.index) + guards(l.guards);
        if (!l.guards.empty()) text += " else " + base::format_double(l.fill);
        return text;
      }
      std::string operator()(const Apply& a) const {
        std::vector<std::string> args;
        for (const ScalarId arg : a.args) args.push_back(printer.use(arg));
        std::string text = fmt::format("{}({})", a.op->name, fmt::join(args, ", "));
        const std::string attrs = op::to_string(a.attrs);
        return attrs.empty() ? text : text + " " + attrs;
      }
      std::string operator()(const Current& c) const { return "current " + printer.use(c.accumulator); }
      std::string operator()(const Philox& p) const {
        return fmt::format("philox {}, {}", sym::to_string(p.seed), sym::to_string(p.counter));
      }
    };
    return std::visit(Visitor{*this, dtype}, source);
  }

  void body(const Body& statements) {
    for (const Statement& statement : statements) std::visit([this](const auto& s) { print(s); }, statement.what);
  }
  void block(const Body& statements) {
    ++depth_;
    body(statements);
    --depth_;
    line("}}");
  }

  void print(const Loop& loop) {
    std::string binding;
    if (loop.binding != Binding::Serial) binding = fmt::format(" {}", binding_name(loop.binding));
    if (loop.binding == Binding::Vector) binding += fmt::format(" {} x {}", loop.width, loop.unroll);
    line("for {} = {} to {}{} {{", loop.axis, sym::to_string(loop.begin), sym::to_string(loop.end), binding);
    block(loop.body);
  }
  void print(const Define& define) { line("define {} = {}", define.name, sym::to_string(define.value)); }
  void print(const Let& let) {
    line("{} = {}", definition(let.result), source(let.source, kernel_.scalar(let.result).dtype));
  }
  void print(const Store& store) {
    const std::string combine =
        store.combine == op::Combine::None ? "" : fmt::format(" {}", combine_name(store.combine));
    line("store{} {} = {}{}", combine, place(store.buffer, store.index), use(store.value), guards(store.guards));
  }
  void print(const Reduce& reduce) {
    std::vector<std::string> items;
    for (const Accumulator& accumulator : reduce.accumulators) {
      std::string item = fmt::format("{} = {}", definition(accumulator.result), combine_name(accumulator.combine));
      if (is_arg(accumulator.combine)) {
        item += fmt::format("({})", definition(accumulator.value));
        arg_accumulators_.insert(accumulator.result.index);
      }
      if (accumulator.last_of_equals) item += " last";
      items.push_back(std::move(item));
    }
    line("reduce {} {{", fmt::join(items, ", "));
    block(reduce.body);
  }
  void print(const Accumulate& accumulate) {
    if (arg_accumulators_.contains(accumulate.accumulator.index)) {
      line("accumulate {} with {} at {}", use(accumulate.accumulator), use(accumulate.value),
           sym::to_string(accumulate.index));
    } else {
      line("accumulate {} with {}", use(accumulate.accumulator), use(accumulate.value));
    }
  }
  void print(const If& statement) {
    line("if {} {{", sym::to_string(statement.condition));
    block(statement.then);
  }
  void print(const Barrier&) { line("barrier"); }
  void print(const Transpose& t) {
    line("transpose {} pitch {} = {} pitch {} rows {} columns {}", place(t.target, t.target_index), sym::to_string(t.target_pitch),
         place(t.source, t.source_index), sym::to_string(t.source_pitch), sym::to_string(t.rows), sym::to_string(t.columns));
  }
  void print(const Prefetch& prefetch) { line("prefetch {}", place(prefetch.buffer, prefetch.index)); }
  void print(const Contract& c) {
    line("contract {} {} = 0 to {}, {} = 0 to {}, {} = 0 to {} tile {} x {} block {}, {}, {} {{", dtype_name(c.dtype),
         c.m_axis, sym::to_string(c.m_size), c.n_axis, sym::to_string(c.n_size), c.k_axis, sym::to_string(c.k_size),
         c.tile_m, c.tile_n, c.block_k, c.block_m, c.block_n);
    ++depth_;
    if (!c.row_axis.empty()) line("rows {} pitch {} size {}", c.row_axis, sym::to_string(c.row_pitch), sym::to_string(c.row_size));
    operand("lhs", c.lhs, c.lhs_value, c.lhs_packed, c.lhs_offset);
    operand("rhs", c.rhs, c.rhs_value, c.rhs_packed, c.rhs_offset);
    line("epilogue {} {{", definition(c.accumulator));
    block(c.epilogue);
    --depth_;
    line("}}");
  }
  void operand(std::string_view side, const Body& statements, ScalarId value, BufferId packed, const sym::Expr& offset) {
    if (packed.valid()) {
      line("{} packed {}", side, place(packed, offset));
      return;
    }
    line("{} {} {{", side, use(value));
    block(statements);
  }

  const Kernel& kernel_;
  std::string out_;
  int depth_ = 0;
  std::set<int32_t> arg_accumulators_;   // those whose Accumulate has an index
};

// ---- parsing ---------------------------------------------------------------------------------------------------------
class Parser {
 public:
  Parser(std::string_view text, const op::OpTable& table, std::string where) : lexer_(text, std::move(where)), table_(table) {}

  Kernel parse() {
    lexer_.expect("kernel");
    kernel_.name = lexer_.expect_name();
    lexer_.expect("(");
    if (!lexer_.accept(")")) {
      do buffer(Space::Global, access());
      while (lexer_.accept(","));
      lexer_.expect(")");
    }
    if (lexer_.accept("sizes")) {
      lexer_.expect("(");
      do kernel_.symbols.push_back(lexer_.expect_name());
      while (lexer_.accept(","));
      lexer_.expect(")");
    }
    if (lexer_.accept("facts")) parse_facts();
    lexer_.expect("{");
    while (true) {
      if (lexer_.accept("shared")) {
        buffer(Space::Shared, Access::ReadWrite);
      } else if (lexer_.accept("local")) {
        buffer(Space::Local, Access::ReadWrite);
      } else {
        break;
      }
    }
    kernel_.body = rest_of_body();
    if (!lexer_.at_end()) lexer_.fail("text after the end of the kernel");
    return std::move(kernel_);
  }

 private:
  Access access() {
    const std::string name = lexer_.expect_name();
    for (size_t i = 0; i < std::size(kAccesses); ++i)
      if (kAccesses[i] == name) return static_cast<Access>(i);
    lexer_.fail(fmt::format("expected read, write or readwrite, found '{}'", name));
  }
  DType dtype() {
    const std::string name = lexer_.expect_name();
    const std::optional<DType> parsed = parse_dtype(name);
    if (!parsed) lexer_.fail(fmt::format("unknown element type '{}'", name));
    return *parsed;
  }
  int32_t small_integer() { return static_cast<int32_t>(lexer_.expect_integer()); }

  void buffer(Space space, Access access) {
    const std::string name = lexer_.expect_symbol();
    lexer_.expect(":");
    const DType type = dtype();
    lexer_.expect("[");
    sym::Expr size = sym::parse_expr(lexer_);
    lexer_.expect("]");
    if (buffers_.contains(name)) lexer_.fail(fmt::format("buffer @{} is declared twice", name));
    buffers_[name] = kernel_.add_buffer(
        {.name = name, .dtype = type, .space = space, .access = access, .size = std::move(size)});
  }

  int64_t bound(int64_t infinite) {
    if (lexer_.accept("inf")) return infinite;
    if (!lexer_.accept("-")) return lexer_.expect_integer();
    if (lexer_.accept("inf")) return infinite;
    return -lexer_.expect_integer();
  }
  void parse_facts() {
    lexer_.expect("(");
    do {
      if (lexer_.accept("nonzero")) {
        kernel_.facts.nonzero.push_back(sym::parse_expr(lexer_));
        continue;
      }
      const std::string name = lexer_.expect_name();
      lexer_.expect("in");
      sym::Range range;
      range.low = bound(sym::Range::kMin);
      lexer_.expect("to");
      range.high = bound(sym::Range::kMax);
      if (lexer_.accept("multiple")) range.divisor = lexer_.expect_integer();
      kernel_.facts.symbols[name] = range;
    } while (lexer_.accept(","));
    lexer_.expect(")");
  }

  ScalarId use() {
    const std::string name = lexer_.expect_value();
    const auto found = scalars_.find(name);
    if (found == scalars_.end()) lexer_.fail(fmt::format("%{} is not defined", name));
    return found->second;
  }
  ScalarId definition() {
    const std::string name = lexer_.expect_value();
    lexer_.expect(":");
    const DType type = dtype();
    if (scalars_.contains(name)) lexer_.fail(fmt::format("%{} is defined twice", name));
    return scalars_[name] = kernel_.add_scalar(type, name);
  }
  BufferId buffer_use() {
    const std::string name = lexer_.expect_symbol();
    const auto found = buffers_.find(name);
    if (found == buffers_.end()) lexer_.fail(fmt::format("buffer @{} is not declared", name));
    return found->second;
  }
  std::pair<BufferId, sym::Expr> place() {
    const BufferId buffer = buffer_use();
    lexer_.expect("[");
    sym::Expr index = sym::parse_expr(lexer_);
    lexer_.expect("]");
    return {buffer, std::move(index)};
  }
  std::vector<sym::Expr> guards() {
    std::vector<sym::Expr> result;
    if (!lexer_.accept("if")) return result;
    lexer_.expect("(");
    do result.push_back(sym::parse_expr(lexer_));
    while (lexer_.accept(","));
    lexer_.expect(")");
    return result;
  }

  Body block() {
    lexer_.expect("{");
    return rest_of_body();
  }
  Body rest_of_body() {
    Body body;
    while (!lexer_.accept("}")) body.push_back(statement());
    return body;
  }

  Statement statement() {
    if (lexer_.peek().kind == base::Token::Kind::Value) return {let()};
    if (lexer_.accept("for")) return {loop()};
    if (lexer_.accept("define")) {
      Define define{.name = lexer_.expect_name()};
      lexer_.expect("=");
      define.value = sym::parse_expr(lexer_);
      return {std::move(define)};
    }
    if (lexer_.accept("store")) return {store()};
    if (lexer_.accept("reduce")) return {reduce()};
    if (lexer_.accept("accumulate")) {
      Accumulate accumulate{.accumulator = use()};
      lexer_.expect("with");
      accumulate.value = use();
      if (lexer_.accept("at")) accumulate.index = sym::parse_expr(lexer_);
      return {std::move(accumulate)};
    }
    if (lexer_.accept("if")) {
      If statement{.condition = sym::parse_expr(lexer_)};
      statement.then = block();
      return {std::move(statement)};
    }
    if (lexer_.accept("barrier")) return {Barrier{}};
    if (lexer_.accept("transpose")) return {transpose()};
    if (lexer_.accept("prefetch")) {
      Prefetch prefetch;
      std::tie(prefetch.buffer, prefetch.index) = place();
      return {std::move(prefetch)};
    }
    if (lexer_.accept("contract")) return {contract()};
    lexer_.fail("expected a statement, found '" + lexer_.peek().text + "'");
  }

  Loop loop() {
    Loop loop{.axis = lexer_.expect_name()};
    lexer_.expect("=");
    loop.begin = sym::parse_expr(lexer_);
    lexer_.expect("to");
    loop.end = sym::parse_expr(lexer_);
    for (const BindingName& entry : kBindings)
      if (lexer_.accept(entry.name)) loop.binding = entry.binding;
    if (loop.binding == Binding::Vector) {
      loop.width = small_integer();
      lexer_.expect("x");
      loop.unroll = small_integer();
    }
    loop.body = block();
    return loop;
  }

  Let let() {
    // The name becomes visible behind its own source: a definition cannot read itself.
    const std::string name = lexer_.expect_value();
    lexer_.expect(":");
    const DType type = dtype();
    lexer_.expect("=");
    Source parsed = source(type);
    if (scalars_.contains(name)) lexer_.fail(fmt::format("%{} is defined twice", name));
    return {.result = scalars_[name] = kernel_.add_scalar(type, name), .source = std::move(parsed)};
  }

  Source source(DType type) {
    if (lexer_.accept("constant")) {
      Constant constant;
      if (is_complex(type)) {
        lexer_.expect("(");
        constant.real = lexer_.expect_number();
        lexer_.expect(",");
        constant.imag = lexer_.expect_number();
        lexer_.expect(")");
      } else if (is_float(type)) {
        constant.real = lexer_.expect_number();
      } else {
        constant.integer = lexer_.expect_integer();
      }
      return constant;
    }
    if (lexer_.accept("index")) return IndexValue{.value = sym::parse_expr(lexer_)};
    if (lexer_.accept("load")) {
      auto [buffer, index] = place();
      Load load{.buffer = buffer, .index = std::move(index), .guards = guards()};
      if (!load.guards.empty()) {
        lexer_.expect("else");
        load.fill = lexer_.expect_number();
      }
      return load;
    }
    if (lexer_.accept("current")) return Current{.accumulator = use()};
    if (lexer_.accept("philox")) {
      Philox philox{.seed = sym::parse_expr(lexer_)};
      lexer_.expect(",");
      philox.counter = sym::parse_expr(lexer_);
      return philox;
    }
    Apply apply;
    const std::string name = lexer_.expect_name();
    apply.op = table_.find(name);
    if (apply.op == nullptr) lexer_.fail(fmt::format("unknown op '{}'", name));
    lexer_.expect("(");
    if (!lexer_.accept(")")) {
      do apply.args.push_back(use());
      while (lexer_.accept(","));
      lexer_.expect(")");
    }
    if (lexer_.peek().is("{")) apply.attrs = op::parse_attrs(lexer_);
    return apply;
  }

  Store store() {
    Store store;
    if (lexer_.peek().kind == base::Token::Kind::Name) {
      const std::string name = lexer_.expect_name();
      const std::optional<op::Combine> combine = parse_combine(name);
      if (!combine || is_arg(*combine)) lexer_.fail(fmt::format("'{}' is no combine of a store", name));
      store.combine = *combine;
    }
    std::tie(store.buffer, store.index) = place();
    lexer_.expect("=");
    store.value = use();
    store.guards = guards();
    return store;
  }

  Transpose transpose() {
    Transpose t;
    std::tie(t.target, t.target_index) = place();
    lexer_.expect("pitch");
    t.target_pitch = sym::parse_expr(lexer_);
    lexer_.expect("=");
    std::tie(t.source, t.source_index) = place();
    lexer_.expect("pitch");
    t.source_pitch = sym::parse_expr(lexer_);
    lexer_.expect("rows");
    t.rows = sym::parse_expr(lexer_);
    lexer_.expect("columns");
    t.columns = sym::parse_expr(lexer_);
    return t;
  }

  Reduce reduce() {
    Reduce reduce;
    do {
      Accumulator accumulator{.result = definition()};
      lexer_.expect("=");
      const std::string name = lexer_.expect_name();
      const std::optional<op::Combine> combine = parse_combine(name);
      if (!combine) lexer_.fail(fmt::format("unknown combine '{}'", name));
      accumulator.combine = *combine;
      if (is_arg(*combine)) {
        lexer_.expect("(");
        accumulator.value = definition();
        lexer_.expect(")");
      }
      accumulator.last_of_equals = lexer_.accept("last");
      reduce.accumulators.push_back(std::move(accumulator));
    } while (lexer_.accept(","));
    reduce.body = block();
    return reduce;
  }

  Contract contract() {
    Contract c{.dtype = dtype()};
    const auto axis = [&](std::string& name, sym::Expr& size) {
      name = lexer_.expect_name();
      lexer_.expect("=");
      if (lexer_.expect_integer() != 0) lexer_.fail("the axes of a contract begin at 0");
      lexer_.expect("to");
      size = sym::parse_expr(lexer_);
    };
    axis(c.m_axis, c.m_size);
    lexer_.expect(",");
    axis(c.n_axis, c.n_size);
    lexer_.expect(",");
    axis(c.k_axis, c.k_size);
    lexer_.expect("tile");
    c.tile_m = small_integer();
    lexer_.expect("x");
    c.tile_n = small_integer();
    lexer_.expect("block");
    c.block_k = small_integer();
    lexer_.expect(",");
    c.block_m = small_integer();
    lexer_.expect(",");
    c.block_n = small_integer();
    lexer_.expect("{");
    if (lexer_.accept("rows")) {
      c.row_axis = lexer_.expect_name();
      lexer_.expect("pitch");
      c.row_pitch = sym::parse_expr(lexer_);
      lexer_.expect("size");
      c.row_size = sym::parse_expr(lexer_);
    }
    const auto operand = [&](std::string_view side, Body& body, ScalarId& value, BufferId& packed, sym::Expr& offset) {
      lexer_.expect(side);
      if (lexer_.accept("packed")) {
        std::tie(packed, offset) = place();
        return;
      }
      const std::string name = lexer_.expect_value();
      body = block();
      const auto found = scalars_.find(name);
      if (found == scalars_.end()) lexer_.fail(fmt::format("%{} is not defined in the body of {}", name, side));
      value = found->second;
    };
    operand("lhs", c.lhs, c.lhs_value, c.lhs_packed, c.lhs_offset);
    operand("rhs", c.rhs, c.rhs_value, c.rhs_packed, c.rhs_offset);
    lexer_.expect("epilogue");
    c.accumulator = definition();
    c.epilogue = block();
    lexer_.expect("}");
    return c;
  }

  base::Lexer lexer_;
  const op::OpTable& table_;
  Kernel kernel_;
  std::unordered_map<std::string, BufferId> buffers_;
  std::unordered_map<std::string, ScalarId> scalars_;
};

}  // namespace

std::string to_string(const Kernel& kernel) { return Printer(kernel).print(); }

Kernel parse_kernel(std::string_view text, const op::OpTable& table, std::string where) {
  return Parser(text, table, std::move(where)).parse();
}

}  // namespace fuseloom::kernel
