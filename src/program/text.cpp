// Program text: docs/ir-program.md has the grammar.
#include <algorithm>
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
    add("program {}(", is_plain_name(program.name) ? program.name : base::quote(program.name));
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
    add("launch {}({})", program.kernels[static_cast<size_t>(launch.kernel)].name, list_of(program, launch.buffers));
    if (!launch.sizes.empty()) add(" sizes ({})", list_of(launch.sizes));
    if (!launch.extent.is_const(1)) add(" extent {}", sym::to_string(launch.extent));
    if (!launch.scratch_bytes.is_const(0)) add(" scratch {}", sym::to_string(launch.scratch_bytes));
    if (!launch.work.is_const(1)) add(" work {}", sym::to_string(launch.work));
    if (!launch.bytes.is_const(0)) add(" bytes {}", sym::to_string(launch.bytes));
    if (launch.in_place.empty()) return;
    out_ += " in_place (";
    for (size_t i = 0; i < launch.in_place.size(); ++i) {
      const auto& [written, read] = launch.in_place[i];
      add("{}{} over {}", i == 0 ? "" : ", ", name_of(program, written), name_of(program, read));
    }
    out_ += ")";
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

}  // namespace

std::string to_string(const Program& program) { return Printer().print(program); }

}  // namespace fuseloom::program
