#include "kernel/visit.h"

#include <map>

#include "base/check.h"

namespace fuseloom::kernel {

using sym::Expr;
using sym::Kind;

namespace {

class ExprVisitor {
 public:
  explicit ExprVisitor(const std::function<void(Expr&, ExprRole)>& visit) : visit_(visit) {}

  void body(Body& statements, bool in_core) {
    for (Statement& statement : statements) {
      std::visit([&](auto& what) { this->statement(what, in_core); }, statement.what);
    }
  }

 private:
  void size(Expr& expr) { visit_(expr, ExprRole::Size); }
  void sizes(std::vector<Expr>& exprs) {
    for (Expr& expr : exprs) size(expr);
  }
  void statement(Loop& loop, bool) {
    const ExprRole role = loop.binding == Binding::Unroll ? ExprRole::Unrolled : ExprRole::Size;
    visit_(loop.begin, role);
    visit_(loop.end, role);
    body(loop.body, loop.binding == Binding::Core);
  }
  void statement(Define& define, bool in_core) { visit_(define.value, in_core ? ExprRole::CoreDefine : ExprRole::Size); }
  void statement(Let& let, bool) {
    if (auto* index = std::get_if<IndexValue>(&let.source)) size(index->value);
    if (auto* load = std::get_if<Load>(&let.source)) {
      size(load->index);
      sizes(load->guards);
    }
    if (auto* philox = std::get_if<Philox>(&let.source)) {
      size(philox->seed);
      size(philox->counter);
    }
  }
  void statement(Store& store, bool) {
    size(store.index);
    sizes(store.guards);
  }
  void statement(Reduce& reduce, bool in_core) { body(reduce.body, in_core); }
  void statement(Accumulate& accumulate, bool) { size(accumulate.index); }
  void statement(If& branch, bool in_core) {
    size(branch.condition);
    body(branch.then, in_core);
  }
  void statement(Barrier&, bool) {}
  void statement(Transpose& t, bool) {
    for (Expr* expr : {&t.target_index, &t.target_pitch, &t.source_index, &t.source_pitch, &t.rows, &t.columns}) size(*expr);
  }
  void statement(Prefetch& prefetch, bool) { size(prefetch.index); }
  void statement(Contract& contract, bool) {
    for (Expr* expr : {&contract.m_size, &contract.n_size, &contract.k_size, &contract.lhs_offset, &contract.rhs_offset,
                       &contract.row_pitch, &contract.row_size}) {
      size(*expr);
    }
    body(contract.lhs, false);
    body(contract.rhs, false);
    body(contract.epilogue, false);
  }

  const std::function<void(Expr&, ExprRole)>& visit_;
};

void names_of(Body& statements, const std::function<void(std::string&)>& visit) {
  for (Statement& statement : statements) {
    if (auto* loop = std::get_if<Loop>(&statement.what)) {
      visit(loop->axis);
      names_of(loop->body, visit);
    } else if (auto* define = std::get_if<Define>(&statement.what)) {
      visit(define->name);
    } else if (auto* reduce = std::get_if<Reduce>(&statement.what)) {
      names_of(reduce->body, visit);
    } else if (auto* branch = std::get_if<If>(&statement.what)) {
      names_of(branch->then, visit);
    } else if (auto* contract = std::get_if<Contract>(&statement.what)) {
      for (std::string* axis : {&contract->m_axis, &contract->n_axis, &contract->k_axis, &contract->row_axis}) {
        if (!axis->empty()) visit(*axis);
      }
      names_of(contract->lhs, visit);
      names_of(contract->rhs, visit);
      names_of(contract->epilogue, visit);
    }
  }
}

void lets_of(Body& statements, const std::function<void(Let&)>& visit) {
  for (Statement& statement : statements) {
    if (auto* loop = std::get_if<Loop>(&statement.what)) {
      lets_of(loop->body, visit);
    } else if (auto* let = std::get_if<Let>(&statement.what)) {
      visit(*let);
    } else if (auto* reduce = std::get_if<Reduce>(&statement.what)) {
      lets_of(reduce->body, visit);
    } else if (auto* branch = std::get_if<If>(&statement.what)) {
      lets_of(branch->then, visit);
    } else if (auto* contract = std::get_if<Contract>(&statement.what)) {
      for (Body* part : {&contract->lhs, &contract->rhs, &contract->epilogue}) lets_of(*part, visit);
    }
  }
}

class Generalizer {
 public:
  explicit Generalizer(GeneralForm& form) : form_(form) {}

  void run(const Kernel& source) {
    form_.kernel = source;
    symbols_.insert(source.symbols.begin(), source.symbols.end());
    rename();
    for_each_expr(form_.kernel, [&](Expr& expr, ExprRole role) {
      if (role == ExprRole::Unrolled) return;
      divisors_too_ = role == ExprRole::CoreDefine;
      expr = general(expr);
    });
    for (Buffer& buffer : form_.kernel.buffers) buffer.size = parameter(buffer.size);
    for_each_let(form_.kernel, [&](Let& let) {
      auto* constant = std::get_if<Constant>(&let.source);
      if (constant == nullptr || form_.kernel.scalar(let.result).dtype != DType::F32) return;
      form_.constants.push_back(constant->real);
      constant->real = 0;
    });
    form_.kernel.symbols.clear();
    form_.kernel.facts = {};
    for (size_t i = 0; i < form_.values.size(); ++i) {
      const std::string name = fmt::format("p{}_", i);
      form_.kernel.symbols.push_back(name);
      form_.kernel.facts.symbols[name] = sym::bounds(form_.values[i], source.facts);
    }
  }

 private:
  // Names that lowering numbers by node become numbers in order of appearance, so that equal structures have equal names
  // (and equal order of terms).
  void rename() {
    std::map<std::string, std::string> names;
    sym::Substitution by;
    const auto fresh = [&](const std::string& old, const std::string& made) {
      names[old] = made;
      by[old] = Expr::symbol(made);
    };
    for_each_name(form_.kernel, [&](std::string& name) {
      if (names.count(name) == 0) fresh(name, fmt::format("i{}_", names.size()));
      name = names[name];
    });
    int read = 0, written = 0, other = 0;
    for (Buffer& buffer : form_.kernel.buffers) {
      buffer.name = buffer.space != Space::Global      ? fmt::format("t{}", other++)
                    : buffer.access == Access::Read ? fmt::format("x{}", read++)
                                                    : fmt::format("y{}", written++);
    }
    // Scalars are numbered in order of creation, which is the lowering's; their names can be read as integers.
    for (size_t i = 0; i < form_.kernel.scalars.size(); ++i) {
      Scalar& scalar = form_.kernel.scalars[i];
      const std::string made = fmt::format("v{}", i);
      if (made != scalar.name) by[scalar.name] = Expr::symbol(made);
      scalar.name = made;
    }
    for_each_expr(form_.kernel, [&](Expr& expr, ExprRole) { expr = sym::substitute(expr, by); });
  }

  bool is_size(const Expr& expr) const {
    for (const std::string& symbol : sym::symbols_of(expr)) {
      if (symbols_.count(symbol) == 0) return false;
    }
    return true;
  }
  Expr parameter(const Expr& value) {
    if (value.is_const(0) || value.is_const(1) || value.is_const(-1)) return value;
    form_.values.push_back(value);
    return Expr::symbol(fmt::format("p{}_", form_.values.size() - 1));
  }

  Expr general(const Expr& expr) {
    if (is_size(expr)) return parameter(expr);
    const auto args = expr.args();
    switch (expr.kind()) {
      case Kind::Const:
      case Kind::Symbol: return expr;
      case Kind::Add: {
        Expr sum = 0, sizes = 0;
        for (const Expr& term : args) {
          if (is_size(term)) sizes = sizes + term;
          else sum = sum + general(term);
        }
        return sum + parameter(sizes);
      }
      case Kind::Mul: {
        Expr varying = 1, sizes = 1;
        for (const Expr& factor : args) {
          if (is_size(factor)) sizes = sizes * factor;
          else varying = varying * general(factor);
        }
        return varying * parameter(sizes);
      }
      case Kind::FloorDiv: return sym::floor_div(general(args[0]), divisor(args[1]));
      case Kind::Mod: return sym::mod(general(args[0]), divisor(args[1]));
      case Kind::Min:
      case Kind::Max: {
        Expr out = general(args[0]);
        for (const Expr& arg : args.subspan(1)) out = expr.kind() == Kind::Min ? sym::min(out, general(arg)) : sym::max(out, general(arg));
        return out;
      }
      case Kind::Eq: return sym::eq(general(args[0]), general(args[1]));
      case Kind::Ne: return sym::ne(general(args[0]), general(args[1]));
      case Kind::Lt: return sym::lt(general(args[0]), general(args[1]));
      case Kind::Le: return sym::le(general(args[0]), general(args[1]));
      case Kind::Select: return sym::select(general(args[0]), general(args[1]), general(args[2]));
    }
    return expr;
  }
  Expr divisor(const Expr& expr) { return expr.is_const() && !divisors_too_ ? expr : general(expr); }

  GeneralForm& form_;
  std::set<std::string> symbols_;
  bool divisors_too_ = false;
};

}  // namespace

void for_each_expr(Kernel& kernel, const std::function<void(Expr&, ExprRole)>& visit) { ExprVisitor(visit).body(kernel.body, true); }

void for_each_name(Kernel& kernel, const std::function<void(std::string&)>& visit) { names_of(kernel.body, visit); }

void for_each_let(Kernel& kernel, const std::function<void(Let&)>& visit) { lets_of(kernel.body, visit); }

GeneralForm general_form(const Kernel& kernel) {
  GeneralForm form;
  Generalizer(form).run(kernel);
  return form;
}

}  // namespace fuseloom::kernel
