#include "schedule/share_kernels.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "base/check.h"
#include "kernel/visit.h"

namespace fuseloom::schedule {

using kernel::Kernel;
using sym::Expr;

namespace {

// k_<kind>_<hash>
std::string_view kind_of(const std::string& name) {
  const size_t end = name.rfind('_');
  return std::string_view(name).substr(2, end - 2);
}

void for_each_program(program::Program& program, const std::function<void(program::Program&)>& visit) {
  visit(program);
  for (program::Line& line : program.lines) {
    if (auto* branch = std::get_if<program::If>(&line.what)) {
      for_each_program(*branch->then, visit);
      for_each_program(*branch->otherwise, visit);
    } else if (auto* loop = std::get_if<program::While>(&line.what)) {
      for_each_program(*loop->body, visit);
    }
  }
}

void for_each_launch(program::Program& program, const std::function<void(program::Launch&)>& visit) {
  for (std::vector<program::Line>* lines : {&program.init, &program.lines}) {
    for (program::Line& line : *lines) {
      if (auto* launch = std::get_if<program::Launch>(&line.what)) visit(*launch);
    }
  }
}

struct Member {
  size_t kernel;                       // in the list
  std::vector<Expr> values;            // of the general form's parameters
  std::vector<double> constants;
};

// What a launch of the shared kernel passes instead of the old kernel's symbols.
struct Replacement {
  std::string name;
  std::vector<std::string> old_symbols;
  std::vector<Expr> sizes;
  std::vector<double> constants;       // not empty: a further buffer
};

sym::Range either(const sym::Range& a, const sym::Range& b) {
  return {.low = std::min(a.low, b.low), .high = std::max(a.high, b.high), .divisor = std::gcd(a.divisor, b.divisor)};
}

program::BufferId constants_of(program::Program& program, const std::vector<double>& values) {
  Tensor tensor(DType::F32, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) tensor.set(static_cast<int64_t>(i), values[i]);
  const auto index = static_cast<int32_t>(program.constants.size());
  program.constants.push_back(std::move(tensor));
  return program.add_buffer({.kind = program::BufferKind::Constant,
                             .type = {DType::F32, {static_cast<int64_t>(values.size())}}, .index = index});
}

// Sizes of a program's buffers are not negative, whatever the interval of their expression says.
std::set<Expr> dimensions_of(program::Program& program) {
  std::set<Expr> dimensions;
  for_each_program(program, [&](const program::Program& each) {
    for (const program::Buffer& buffer : each.buffers) dimensions.insert(buffer.type.shape.begin(), buffer.type.shape.end());
  });
  return dimensions;
}

// A size that a kernel should be given instead of computing it, again and again, from the program's symbols.
bool is_derived(const Expr& size) { return !size.is_const() && !size.is_symbol(); }

Kernel shared_kernel(Kernel form, const std::vector<Kernel>& kernels, const std::vector<Member>& members, const std::set<Expr>& dimensions,
                     std::vector<Replacement>& replacements) {
  const std::vector<std::string> parameters = form.symbols;
  form.symbols.clear();
  form.facts = {};
  sym::Substitution by;
  std::map<std::vector<Expr>, std::string> known;      // columns that agree in every member are one argument
  for (const Member& member : members) replacements.push_back({.name = "", .old_symbols = kernels[member.kernel].symbols, .sizes = {}, .constants = {}});
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::vector<Expr> column;
    for (const Member& member : members) column.push_back(member.values[i]);
    const bool same = std::all_of(column.begin(), column.end(), [&](const Expr& value) { return value == column[0]; });
    if (same && column[0].is_const()) {
      by[parameters[i]] = column[0];
      continue;
    }
    const auto [found, fresh] = known.emplace(column, fmt::format("s{}", known.size()));
    by[parameters[i]] = Expr::symbol(found->second);
    if (!fresh) continue;
    form.symbols.push_back(found->second);
    const auto range_of = [&](size_t m) {
      sym::Range range = sym::bounds(column[m], kernels[members[m].kernel].facts);
      if (dimensions.count(column[m]) != 0) range.low = std::max<int64_t>(range.low, 0);
      return range;
    };
    sym::Range range = range_of(0);
    for (size_t m = 0; m < members.size(); ++m) {
      range = either(range, range_of(m));
      replacements[m].sizes.push_back(column[m]);
    }
    form.facts.symbols[found->second] = range;
  }
  kernel::for_each_expr(form, [&](Expr& expr, kernel::ExprRole) { expr = sym::substitute(expr, by); });
  for (kernel::Buffer& buffer : form.buffers) buffer.size = sym::substitute(buffer.size, by);
  // Constants that differ are read from a buffer.
  size_t constant = 0;
  kernel::BufferId table;
  kernel::for_each_let(form, [&](kernel::Let& let) {
    if (!std::holds_alternative<kernel::Constant>(let.source) || form.scalar(let.result).dtype != DType::F32) return;
    const size_t i = constant++;
    const auto bits = [&](const Member& member) { return std::bit_cast<uint64_t>(member.constants[i]); };
    if (std::all_of(members.begin(), members.end(), [&](const Member& member) { return bits(member) == bits(members[0]); })) {
      std::get<kernel::Constant>(let.source).real = members[0].constants[i];
      return;
    }
    if (!table.valid()) table = form.add_buffer({.name = "constants", .dtype = DType::F32, .access = kernel::Access::Read});
    for (size_t m = 0; m < members.size(); ++m) replacements[m].constants.push_back(members[m].constants[i]);
    const auto count = static_cast<int64_t>(replacements[0].constants.size());
    let.source = kernel::Load{.buffer = table, .index = count - 1};
    form.buffers[static_cast<size_t>(table.index)].size = count;
  });
  kernel::name_kernel(form, kind_of(kernels[members[0].kernel].name));
  for (Replacement& replacement : replacements) replacement.name = form.name;
  kernel::verify(form);
  return form;
}

}  // namespace

std::map<std::string, std::string> share_kernels(program::Program& program, std::vector<Kernel>& kernels) {
  std::set<std::string> fixed;
  for_each_program(program, [&](program::Program& each) {
    for_each_launch(each, [&](const program::Launch& launch) {
      if (launch.variants.size() == 1) return;
      for (const program::Variant& variant : launch.variants) fixed.insert(each.kernels[static_cast<size_t>(variant.kernel)].name);
    });
  });
  std::vector<std::pair<Kernel, std::vector<Member>>> classes;
  std::map<std::string, size_t> class_of;
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (fixed.count(kernels[i].name) != 0) continue;
    kernel::GeneralForm form = kernel::general_form(kernels[i]);
    form.kernel.name = std::string(kind_of(kernels[i].name));
    form.kernel.facts = {};
    const auto [found, fresh] = class_of.emplace(kernel::to_string(form.kernel), classes.size());
    if (fresh) classes.emplace_back(std::move(form.kernel), std::vector<Member>());
    classes[found->second].second.push_back({i, std::move(form.values), std::move(form.constants)});
  }
  std::map<std::string, Replacement> replaced;           // by old name
  std::map<size_t, Kernel> in_place_of;                  // by the index of a class' first kernel
  const std::set<Expr> dimensions = dimensions_of(program);
  for (auto& [form, members] : classes) {
    if (members.size() == 1 && std::none_of(members[0].values.begin(), members[0].values.end(), is_derived)) continue;
    std::vector<Replacement> replacements;
    Kernel made = shared_kernel(std::move(form), kernels, members, dimensions, replacements);
    for (size_t m = 0; m < members.size(); ++m) replaced[kernels[members[m].kernel].name] = std::move(replacements[m]);
    in_place_of.emplace(members[0].kernel, std::move(made));
  }
  // Two general forms can come out equal once constants are back in place.
  std::vector<Kernel> left;
  std::set<std::string> names_left;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const auto shared = in_place_of.find(i);
    if (shared == in_place_of.end() && replaced.count(kernels[i].name) != 0) continue;
    Kernel& kernel = shared == in_place_of.end() ? kernels[i] : shared->second;
    if (names_left.insert(kernel.name).second) left.push_back(std::move(kernel));
  }
  kernels = std::move(left);

  for_each_program(program, [&](program::Program& each) {
    std::vector<program::KernelRef> names;
    std::vector<int32_t> moved;
    for (const program::KernelRef& old : each.kernels) {
      const auto replacement = replaced.find(old.name);
      const std::string& name = replacement == replaced.end() ? old.name : replacement->second.name;
      const auto known = std::find_if(names.begin(), names.end(), [&](const program::KernelRef& ref) { return ref.name == name; });
      moved.push_back(static_cast<int32_t>(known - names.begin()));
      if (known == names.end()) names.push_back({name});
    }
    for_each_launch(each, [&](program::Launch& launch) {
      const auto replacement = replaced.find(each.kernels[static_cast<size_t>(launch.variants[0].kernel)].name);
      if (replacement != replaced.end()) {
        sym::Substitution old;
        for (size_t i = 0; i < launch.sizes.size(); ++i) old[replacement->second.old_symbols[i]] = launch.sizes[i];
        launch.sizes.clear();
        for (const Expr& size : replacement->second.sizes) launch.sizes.push_back(sym::substitute(size, old));
        if (!replacement->second.constants.empty()) launch.buffers.push_back(constants_of(each, replacement->second.constants));
      }
      for (program::Variant& variant : launch.variants) variant.kernel = moved[static_cast<size_t>(variant.kernel)];
    });
    each.kernels = std::move(names);
  });
  std::map<std::string, std::string> names;
  for (const auto& [old, replacement] : replaced) names[old] = replacement.name;
  return names;
}

}  // namespace fuseloom::schedule
