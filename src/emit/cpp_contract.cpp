// A contraction as C++: blocks that fit the caches, operands in panels, a micro-kernel whose tile stays in registers.
//
//   for n0 by block_n                      rhs, all of k, in panels [n/tile_n][k][tile_n]        outer caches
//     for m0 by block_m
//       for k0 by block_k                  lhs in rows [m][k], read once per element               L2
//         for n1 by tile_n                 one rhs panel                                           L1
//           for m1 by tile_m               micro-kernel: tile_m x tile_n sums in registers
//                                          added to the tile buffer [block_m][block_n]
//       epilogue over the tile buffer, row by row, vectorised along n
//
// The micro-kernel always computes a whole tile: panels and rows are padded, and the epilogue reads what exists. Rows of
// lhs are read where they lie in the scratch, one broadcast per element; only an operand that was packed ahead is in panels
// [m/tile_m][k][tile_m].
#include <algorithm>

#include "base/check.h"
#include "emit/cpp_kernel.h"

namespace fuseloom::emit {

using kernel::Body;
using kernel::Contract;
using kernel::Define;
using kernel::Let;
using kernel::Load;
using kernel::Statement;

namespace {

// Rows are moved apart, so that equal columns of many rows do not fall into one cache set.
constexpr int64_t kRowPadding = 16;

// The size if it only needs the kernel's symbols, else the limit.
sym::Expr known_or(const sym::Expr& size, int64_t limit, const kernel::Kernel& kernel) {
  for (const std::string& symbol : sym::symbols_of(size))
    if (std::find(kernel.symbols.begin(), kernel.symbols.end(), symbol) == kernel.symbols.end()) return limit;
  return sym::min(size, limit);
}

void layout_body(const Body& statements, const kernel::Kernel& kernel, sym::Expr& most) {
  for (const Statement& statement : statements) {
    if (const auto* contract = std::get_if<Contract>(&statement.what)) {
      most = sym::max(most, layout_contract(*contract, kernel).bytes);
    } else if (const auto* loop = std::get_if<kernel::Loop>(&statement.what)) {
      layout_body(loop->body, kernel, most);
    } else if (const auto* reduce = std::get_if<kernel::Reduce>(&statement.what)) {
      layout_body(reduce->body, kernel, most);
    } else if (const auto* branch = std::get_if<kernel::If>(&statement.what)) {
      layout_body(branch->then, kernel, most);
    }
  }
}

// How many loads of an operand body move by one element along the axis.
int unit_loads(const Body& statements, const std::string& axis) {
  sym::Substitution defines;
  int count = 0;
  for (const Statement& statement : statements) {
    if (const auto* define = std::get_if<Define>(&statement.what)) {
      defines[define->name] = sym::substitute(define->value, defines);
    } else if (const auto* let = std::get_if<Let>(&statement.what)) {
      const auto* load = std::get_if<Load>(&let->source);
      if (load == nullptr) continue;
      const sym::Expr index = sym::substitute(load->index, defines);
      const sym::Expr next = sym::substitute(index, {{axis, sym::Expr::symbol(axis) + 1}});
      count += sym::prove_equal(next, index + 1) == sym::Proof::Yes ? 1 : 0;
    }
  }
  return count;
}

}  // namespace

ContractLayout layout_contract(const Contract& contract, const kernel::Kernel& kernel) {
  const int64_t bytes = dtype_bytes(contract.dtype);
  ContractLayout layout;
  layout.lhs_pitch = contract.block_k + kRowPadding;
  layout.tile_pitch = contract.block_n + kRowPadding;
  const sym::Expr rows = sym::round_up(known_or(contract.m_size, contract.block_m, kernel), contract.tile_m);
  const sym::Expr columns = sym::round_up(known_or(contract.n_size, contract.block_n, kernel), contract.tile_n);
  const auto place = [&](sym::Expr& offset, const sym::Expr& elements) {
    offset = layout.bytes;
    layout.bytes = layout.bytes + sym::round_up(elements * bytes, 64);
  };
  place(layout.lhs, contract.lhs_packed.valid() ? sym::Expr(0) : rows * layout.lhs_pitch);
  if (!contract.rhs_packed.valid()) {
    for (const std::string& symbol : sym::symbols_of(contract.k_size))
      FL_SUPPORTED(std::find(kernel.symbols.begin(), kernel.symbols.end(), symbol) != kernel.symbols.end(),
                   "{}: the k size of a contraction that packs its rhs must be known in advance, but reads {}", kernel.name, symbol);
    place(layout.rhs, columns * contract.k_size);
  }
  place(layout.tile, rows * layout.tile_pitch);
  return layout;
}

ScratchLayout layout_scratch(const kernel::Kernel& kernel) {
  ScratchLayout layout;
  for (size_t i = 0; i < kernel.buffers.size(); ++i) {
    const kernel::Buffer& buffer = kernel.buffers[i];
    if (buffer.space != kernel::Space::Local) continue;
    layout.local_offset[static_cast<int32_t>(i)] = layout.bytes;
    layout.bytes = layout.bytes + sym::round_up(buffer.size * dtype_bytes(buffer.dtype), 64);
  }
  layout.contract_offset = layout.bytes;
  sym::Expr most = 0;
  layout_body(kernel.body, kernel, most);
  layout.bytes = layout.bytes + most;
  return layout;
}

struct CppKernelWriter::ContractNames {
  std::string type;                         // of an element
  std::string m_size, n_size, k_size;
  std::string m0, n0, k0;                   // where the block begins
  std::string mb, nb, kb;                   // its extent
  std::string lhs, rhs, tile;               // pointers
  int lanes = 1;
  ContractLayout layout;
};

int CppKernelWriter::contract_lanes(const Contract& contract) const {
  const int lanes = static_cast<int>(target_.vector_bytes / dtype_bytes(contract.dtype));
  return std::min(lanes, contract.tile_n);
}

sym::Expr CppKernelWriter::internal_symbol(const std::string& symbol, const std::string& text) {
  integers_[symbol] = {.text = text};
  scopes_.back().integers.push_back(symbol);
  facts_.symbols[symbol] = sym::Facts::size();
  return sym::Expr::symbol(symbol);
}

// tile_m x tile_n sums over k, written out; `c` is set or added to. Rows of `a` lie a constant apart (so that one register
// addresses all of them), or are interleaved in a panel.
std::string CppKernelWriter::micro_kernel(const Contract& contract) {
  const int lanes = contract_lanes(contract), vectors = contract.tile_n / lanes;
  const DType dtype = contract.dtype;
  const ContractLayout layout = layout_contract(contract, kernel_);
  const std::string type = prelude_.type(dtype, 0), vector_type = prelude_.type(dtype, lanes);
  const bool panel = contract.lhs_packed.valid();
  std::string name = fmt::format("contract_{}x{}_{}x{}", contract.tile_m, contract.tile_n, panel ? 0 : layout.lhs_pitch, layout.tile_pitch);
  name += "_" + vector_type;
  const std::string load = prelude_.memory("load", dtype, lanes), store = prelude_.memory("store", dtype, lanes);
  const std::string splat = prelude_.function("splat", dtype, lanes);
  const std::string add = is_float(dtype) ? "" : prelude_.function("add", dtype, lanes);
  const std::string fused = is_float(dtype) ? prelude_.function("fma", dtype, lanes) : prelude_.function("mul", dtype, lanes);
  const auto plus = [&](const std::string& a, const std::string& b) {
    return add.empty() ? fmt::format("{} + {}", a, b) : fmt::format("{}({}, {})", add, a, b);
  };
  SourceWriter text;
  text.open("static __attribute__((noinline)) void {}(i64 k, const {}* a, const {}* b, {}* c, bool more)", name, type, type, type);
  for (int m = 0; m < contract.tile_m; ++m) {
    std::string row;
    for (int n = 0; n < vectors; ++n) row += fmt::format("{}c{}_{} = {}(0)", n == 0 ? "" : ", ", m, n, splat);
    text.line("{} {};", vector_type, row);
  }
  text.open("for (; k > 0; --k)");
  for (int n = 0; n < vectors; ++n) text.line("const {} b{} = {}(b + {});", vector_type, n, load, n * lanes);
  for (int m = 0; m < contract.tile_m; ++m) {
    text.line("const {} a{} = {}(a[{}]);", vector_type, m, splat, panel ? m : m * layout.lhs_pitch);
    for (int n = 0; n < vectors; ++n) {
      const std::string sum = fmt::format("c{}_{}", m, n);
      if (is_float(dtype)) text.line("{} = {}(a{}, b{}, {});", sum, fused, m, n, sum);
      else text.line("{} = {}({}, {}(a{}, b{}));", sum, add, sum, fused, m, n);
    }
  }
  text.line("a += {};", panel ? contract.tile_m : 1);
  text.line("b += {};", contract.tile_n);
  text.close();
  for (const bool more : {true, false}) {
    if (more) text.open("if (more)");
    for (int m = 0; m < contract.tile_m; ++m) {
      for (int n = 0; n < vectors; ++n) {
        const std::string place = fmt::format("c + {}", m * layout.tile_pitch + n * lanes), sum = fmt::format("c{}_{}", m, n);
        text.line("{}({}, {});", store, place, more ? plus(fmt::format("{}({})", load, place), sum) : sum);
      }
    }
    if (more) {
      text.line("return;");
      text.close();
    }
  }
  text.close();
  prelude_.write_once(name, text.text());
  return name;
}

void CppKernelWriter::statement(const Contract& contract) {
  FL_CHECK(contract.tile_n % contract_lanes(contract) == 0, "{}: tile_n {} is no multiple of {} lanes", kernel_.name, contract.tile_n,
           contract_lanes(contract));
  ContractNames names;
  names.layout = layout_contract(contract, kernel_);
  names.lanes = contract_lanes(contract);
  names.type = prelude_.type(contract.dtype, 0);
  const std::string micro = micro_kernel(contract), min = prelude_.integer("min", 0);
  open_scope();
  out_.open("");
  const auto declare = [&](std::string& name, const char* wanted, const std::string& text) {
    name = names_.declare(wanted);
    out_.line("const i64 {} = {};", name, text);
  };
  declare(names.m_size, "m_size", integer(contract.m_size));
  declare(names.n_size, "n_size", integer(contract.n_size));
  declare(names.k_size, "k_size", integer(contract.k_size));
  const auto pointer = [&](std::string& name, const char* wanted, const sym::Expr& offset) {
    name = names_.declare(wanted);
    out_.line("{}* const {} = ({}*)(scratch + {});", names.type, name, names.type, integer_term(scratch_.contract_offset + offset));
  };
  const auto packed = [&](std::string& name, const char* wanted, kernel::BufferId buffer, const sym::Expr& offset) {
    name = names_.declare(wanted);
    out_.line("const {}* const {} = {};", names.type, name, address(buffer, offset));
  };
  if (contract.lhs_packed.valid()) packed(names.lhs, "lhs_panels", contract.lhs_packed, contract.lhs_offset);
  else pointer(names.lhs, "lhs_rows", names.layout.lhs);
  if (contract.rhs_packed.valid()) packed(names.rhs, "rhs_panels", contract.rhs_packed, contract.rhs_offset);
  else pointer(names.rhs, "rhs_panels", names.layout.rhs);
  pointer(names.tile, "tile", names.layout.tile);

  const auto block = [&](std::string& first, std::string& count, const char* wanted, const std::string& size, int32_t by) {
    open_scope();
    first = names_.declare(fmt::format("{}0", wanted));
    count = names_.declare(fmt::format("{}b", wanted));
    out_.open("for (i64 {} = 0; {} < {}; {} += {})", first, first, size, first, by);
    out_.line("const i64 {} = {}({} - {}, {});", count, min, size, first, by);
  };
  block(names.n0, names.nb, "n", names.n_size, contract.block_n);
  if (!contract.rhs_packed.valid()) pack_rhs(contract, names);
  block(names.m0, names.mb, "m", names.m_size, contract.block_m);
  // At least one round, so that a sum over nothing is 0.
  open_scope();
  names.k0 = names_.declare("k0");
  names.kb = names_.declare("kb");
  out_.open("for (i64 {} = 0; {} == 0 || {} < {}; {} += {})", names.k0, names.k0, names.k0, names.k_size, names.k0, contract.block_k);
  out_.line("const i64 {} = {}({} - {}, {});", names.kb, min, names.k_size, names.k0, contract.block_k);
  if (!contract.lhs_packed.valid()) pack_lhs(contract, names);
  const std::string n1 = names_.declare("n1"), m1 = names_.declare("m1");
  out_.open("for (i64 {} = 0; {} < {}; {} += {})", n1, n1, names.nb, n1, contract.tile_n);
  out_.open("for (i64 {} = 0; {} < {}; {} += {})", m1, m1, names.mb, m1, contract.tile_m);
  const std::string lhs = contract.lhs_packed.valid()
                              ? fmt::format("{} + ({} + {})*{} + {}*{}", names.lhs, names.m0, m1, names.k_size, names.k0, contract.tile_m)
                              : fmt::format("{} + {}*{}", names.lhs, m1, names.layout.lhs_pitch);
  const std::string column = contract.rhs_packed.valid() ? fmt::format("({} + {})", names.n0, n1) : n1;
  out_.line("{}({}, {}, {} + {}*{} + {}*{}, {} + {}*{} + {}, {} != 0);", micro, names.kb, lhs, names.rhs, column, names.k_size, names.k0,
            contract.tile_n, names.tile, m1, names.layout.tile_pitch, n1, names.k0);
  out_.close();
  out_.close();
  out_.close();
  close_scope();
  contract_epilogue(contract, names);
  for (int level = 0; level < 2; ++level) {
    out_.close();
    close_scope();
  }
  out_.close();
  close_scope();
}

void CppKernelWriter::pack_rhs(const Contract& contract, const ContractNames& names) {
  const int tile = contract.tile_n, lanes = names.lanes;
  const std::string store = prelude_.memory("store", contract.dtype, lanes);
  open_scope();
  const std::string n1 = names_.declare("n1"), panel = names_.declare("panel");
  out_.open("for (i64 {} = 0; {} < {}; {} += {})", n1, n1, names.nb, n1, tile);
  out_.line("{}* const {} = {} + {}*{};", names.type, panel, names.rhs, n1, names.k_size);
  const sym::Expr k_size = internal_symbol("contract.k_size", names.k_size);
  if (unit_loads(contract.rhs, contract.k_axis) > unit_loads(contract.rhs, contract.n_axis)) {
    // Columns lie along k: squares of lanes x lanes elements are read along k and turned in registers.
    const std::string transpose = prelude_.transpose(contract.dtype, lanes), splat_zero = prelude_.function("splat", contract.dtype, lanes);
    const std::string vector_type = prelude_.type(contract.dtype, lanes);
    open_scope();
    const std::string column = names_.declare("column");
    out_.open("for (i64 {} = 0; {} < {}; {} += {})", column, column, tile, column, lanes);
    vector_versions(contract.k_axis, 0, k_size, lanes, 1, [&] {
      const std::string square = names_.declare("square"), c = names_.declare("c");
      out_.line("{} {}[{}];", vector_type, square, lanes);
      open_scope();
      out_.open("for (i64 {} = 0; {} < {}; ++{})", c, c, lanes, c);
      const std::string n = names_.declare(contract.n_axis);
      out_.line("const i64 {} = {} + {} + {} + {};", n, names.n0, n1, column, c);
      declare_axis(contract.n_axis, n, 0, contract.n_size);
      out_.open("if ({} < {} + {})", n, names.n0, names.nb);
      body(contract.rhs);
      out_.line("{}[{}] = {};", square, c, vector(contract.rhs_value, 0));
      out_.close();
      out_.line("else {}[{}] = {}(0);", square, c, splat_zero);
      out_.close();
      close_scope();
      out_.line("{}({});", transpose, square);
      const std::string l = names_.declare("l");
      const std::string limit = vector_->count.empty() ? "" : fmt::format(" && {} < {}", l, vector_->count);
      out_.line("for (i64 {} = 0; {} < {}{}; ++{}) {}({} + ({} + {})*{} + {}, {}[{}]);", l, l, lanes, limit, l, store, panel,
                vector_->position, l, tile, column, square, l);
    });
    out_.close();
    close_scope();
  } else {
    // Rows lie along n: whole panels, then the one with missing columns, vector by vector.
    const auto rows = [&](int copies, const std::string& first, const std::string& count, const std::string& place) {
      open_scope();
      const std::string k = names_.declare(contract.k_axis);
      out_.open("for (i64 {} = 0; {} < {}; ++{})", k, k, names.k_size, k);
      declare_axis(contract.k_axis, k, 0, contract.k_size);
      const std::string n = names_.declare(contract.n_axis);
      out_.line("const i64 {} = {};", n, first);
      declare_axis(contract.n_axis, n, 0, contract.n_size);
      integers_[contract.n_axis].varying = true;
      vector_ = Vector{.axis = contract.n_axis, .position = n, .width = lanes, .copies = copies, .count = count};
      body(contract.rhs);
      for (int copy = 0; copy < copies; ++copy)
        out_.line("{}({} + {}*{} + {}, {});", store, place, k, tile, copy * lanes, vector(contract.rhs_value, copy));
      vector_.reset();
      out_.close();
      close_scope();
    };
    const std::string first = fmt::format("{} + {}", names.n0, n1);
    out_.open("if ({} - {} >= {})", names.nb, n1, tile);
    rows(tile / lanes, first, "", panel);
    out_.close();
    open_scope();
    out_.open("else");
    const std::string part = names_.declare("part"), count = names_.declare("part_n");
    out_.open("for (i64 {} = 0; {} < {}; {} += {})", part, part, tile, part, lanes);
    out_.line("const i64 {} = {} - {} - {};", count, names.nb, n1, part);
    rows(1, fmt::format("{} + {}", first, part), count, fmt::format("{} + {}", panel, part));
    out_.close();
    out_.close();
    close_scope();
  }
  out_.close();
  close_scope();
}

void CppKernelWriter::pack_lhs(const Contract& contract, const ContractNames& names) {
  const int lanes = names.lanes;
  const int64_t pitch = names.layout.lhs_pitch;
  const auto memory = [&](std::string_view function) { return prelude_.memory(function, contract.dtype, lanes); };
  const bool along_m = unit_loads(contract.lhs, contract.m_axis) > unit_loads(contract.lhs, contract.k_axis);
  const std::string outer_size = along_m ? names.kb : names.mb, outer_first = along_m ? names.k0 : names.m0;
  const std::string& outer_axis = along_m ? contract.k_axis : contract.m_axis;
  const std::string& inner_axis = along_m ? contract.m_axis : contract.k_axis;
  open_scope();
  const sym::Expr inner_first = internal_symbol("contract.first", along_m ? names.m0 : names.k0);
  const sym::Expr inner_count = internal_symbol("contract.count", along_m ? names.mb : names.kb);
  const std::string outer = names_.declare("outer");
  out_.open("for (i64 {} = 0; {} < {}; ++{})", outer, outer, outer_size, outer);
  const std::string axis = names_.declare(outer_axis);
  out_.line("const i64 {} = {} + {};", axis, outer_first, outer);
  declare_axis(outer_axis, axis, 0, along_m ? contract.k_size : contract.m_size);
  hoist(contract.lhs, {inner_axis});
  vector_versions(inner_axis, inner_first, inner_first + inner_count, lanes, along_m ? 1 : 4, [&] {
    body(contract.lhs);
    const std::string from = along_m ? names.m0 : names.k0;
    for (int copy = 0; copy < vector_->copies; ++copy) {
      const std::string value = vector(contract.lhs_value, copy);
      const std::string_view part = vector_->count.empty() ? "" : "_part";
      const std::string count = vector_->count.empty() ? "" : ", " + vector_->count;
      if (along_m) {
        out_.line("{}({} + ({} - {} + {})*{} + {}, {}, {}{});", memory(fmt::format("scatter_step{}", part)), names.lhs, vector_->position,
                  from, copy * lanes, pitch, outer, pitch, value, count);
      } else {
        out_.line("{}({} + {}*{} + ({} - {} + {}), {}{});", memory(fmt::format("store{}", part)), names.lhs, outer, pitch,
                  vector_->position, from, copy * lanes, value, count);
      }
    }
  });
  out_.close();
  // The rows that fill up the last tile.
  const std::string row = names_.declare("row"), k = names_.declare("k");
  out_.line("for (i64 {} = {}; {} % {} != 0; ++{})", row, names.mb, row, contract.tile_m, row);
  out_.line("  for (i64 {} = 0; {} < {}; ++{}) {}[{}*{} + {}] = 0;", k, k, names.kb, k, names.lhs, row, pitch, k);
  close_scope();
}

void CppKernelWriter::contract_epilogue(const Contract& contract, const ContractNames& names) {
  const int lanes = names.lanes;
  open_scope();
  hoist(contract.epilogue, {contract.m_axis, contract.row_axis, contract.n_axis});
  const std::string row = names_.declare("row");
  out_.open("for (i64 {} = 0; {} < {}; ++{})", row, row, names.mb, row);
  const std::string m = names_.declare(contract.m_axis);
  out_.line("const i64 {} = {} + {};", m, names.m0, row);
  declare_axis(contract.m_axis, m, 0, contract.m_size);
  // The columns of the block, or of one of its rows: where they begin, how many they are, and how far the tile lies behind.
  std::string first = names.n0, count = names.nb, behind = names.n0;
  sym::Expr columns = contract.n_size;
  if (!contract.row_axis.empty()) {
    hoist(contract.epilogue, {contract.row_axis, contract.n_axis});
    const std::string r = names_.declare(contract.row_axis), begin = names_.declare("begin"), size = names_.declare("size");
    const std::string last = fmt::format("{} + {}", names.n0, names.nb);
    const std::string pitch = names_.declare("pitch");
    out_.line("const i64 {} = {};", pitch, integer(contract.row_pitch));
    out_.open("for (i64 {} = {} / {}; {}*{} < {}; ++{})", r, names.n0, pitch, r, pitch, last, r);
    out_.line("const i64 {} = {}({} - {}*{}, 0);", begin, prelude_.integer("max", 0), names.n0, r, pitch);
    out_.line("const i64 {} = {}({}({} - {}*{}, {}) - {}, 0);", size, prelude_.integer("max", 0), prelude_.integer("min", 0), last, r,
              pitch, integer(contract.row_size), begin);
    declare_axis(contract.row_axis, r, 0, contract.n_size);
    first = begin;
    count = size;
    behind = fmt::format("({} - {}*{})", names.n0, r, pitch);
    columns = contract.row_size;
  }
  hoist(contract.epilogue, {contract.n_axis});
  std::set<std::string> varying = {contract.n_axis};
  const std::string place = fmt::format("{} + {}*{}", names.tile, row, names.layout.tile_pitch);
  if (lanes > 1 && is_vectorizable(contract.epilogue, varying)) {
    const std::string load = prelude_.memory("load", contract.dtype, lanes);
    const sym::Expr begin = internal_symbol("contract.first", first);
    const sym::Expr end = begin + internal_symbol("contract.count", count);
    vector_versions(contract.n_axis, begin, end, lanes, std::max(1, std::min(contract.tile_n / lanes, 4)), [&] {
      std::vector<std::string> sums;
      for (int copy = 0; copy < vector_->copies; ++copy)
        sums.push_back(fmt::format("{}({} + ({} - {}){})", load, place, vector_->position, behind,
                                   copy == 0 ? "" : fmt::format(" + {}", copy * lanes)));
      define_varying(contract.accumulator, sums);
      body(contract.epilogue);
    });
  } else {
    open_scope();
    const std::string n = names_.declare(contract.n_axis);
    out_.open("for (i64 {} = {}; {} < {} + {}; ++{})", n, first, n, first, count, n);
    declare_axis(contract.n_axis, n, 0, columns);
    define_uniform(contract.accumulator, fmt::format("({})[{} - {}]", place, n, behind));
    body(contract.epilogue);
    out_.close();
    close_scope();
  }
  if (!contract.row_axis.empty()) out_.close();
  out_.close();
  close_scope();
}

}  // namespace fuseloom::emit
