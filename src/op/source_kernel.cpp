#include "op/source_kernel.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/check.h"
#include "op/op.h"

namespace fuseloom::op {

namespace {

bool is_identifier(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && letter(name[0]) && std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

// x0_d1, y2_d0.
bool is_size(std::string_view name) {
  const size_t middle = name.find("_d");
  const auto number = [](std::string_view digits) {
    return !digits.empty() && std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  return middle != std::string_view::npos && (name[0] == 'x' || name[0] == 'y') && number(name.substr(1, middle - 1)) && number(name.substr(middle + 2));
}

}  // namespace

void check_source_kernel(const OpRecord& record) {
  const SourceKernel& kernel = *record.kernel;
  FL_REQUIRE(is_identifier(record.name), "op '{}': an op with a kernel has a name of letters, digits and underscores", record.name);
  FL_REQUIRE(record.rule.empty() && !record.decompose && !record.index_map, "op '{}': has a kernel and another definition; it can have one", record.name);
  FL_REQUIRE(record.infer != nullptr, "op '{}': a kernel needs a rule for the types and shapes of the results (infer)", record.name);
  FL_REQUIRE(!kernel.source.empty(), "op '{}': the kernel has no source", record.name);
  FL_REQUIRE(!kernel.configurations.empty(), "op '{}': the kernel has no configuration; one without constants is {{}}", record.name);
  FL_REQUIRE(kernel.configurations.back().condition == "1", "op '{}': the last configuration has the condition '{}'; it must be 1, so that one always fits",
             record.name, kernel.configurations.back().condition);
  const KernelConfiguration& first = kernel.configurations[0];
  std::set<std::string> names;
  for (const auto& [name, value] : first.constants) names.insert(name);
  for (const AttrSpec& attr : record.attrs) {
    if (attr.kind == AttrSpec::Kind::Integer || attr.kind == AttrSpec::Kind::Real) FL_REQUIRE(is_identifier(attr.name), "op '{}': attribute '{}' is no identifier", record.name, attr.name);
    FL_REQUIRE(names.count(attr.name) == 0, "op '{}': '{}' is an attribute and a constant of the kernel", record.name, attr.name);
    if (attr.kind == AttrSpec::Kind::Integer) names.insert(attr.name);
  }
  const auto check = [&](const std::string& text, std::string_view what) {
    for (const std::string& symbol : sym::symbols_of(sym::parse_expr(text)))
      FL_REQUIRE(names.count(symbol) != 0 || is_size(symbol), "op '{}': {} '{}' names '{}', which is no size (x0_d1, y0_d1), constant or integer attribute",
                 record.name, what, text, symbol);
  };
  std::set<std::string> seen;
  for (size_t i = 0; i < kernel.configurations.size(); ++i) {
    const KernelConfiguration& each = kernel.configurations[i];
    const bool same = each.constants.size() == first.constants.size() &&
                      std::all_of(each.constants.begin(), each.constants.end(), [&](const auto& constant) { return first.constants.count(constant.first) != 0; });
    FL_REQUIRE(same, "op '{}': configuration {} has other constants than the first; they differ in values only", record.name, i);
    for (const auto& [name, value] : each.constants) FL_REQUIRE(is_identifier(name) && !is_size(name), "op '{}': '{}' is no name for a constant", record.name, name);
    check(each.condition, "the condition");
    const bool joins = i > 0 && kernel.configurations[i - 1].condition == each.condition;
    FL_REQUIRE(joins || seen.insert(each.condition).second, "op '{}': configuration {} comes after others with its condition '{}' and will never be used",
               record.name, i, each.condition);
  }
  check(kernel.extent, "the extent");
  check(kernel.scratch_bytes, "the scratch size");
  if (!kernel.work.empty()) check(kernel.work, "the work");
  for (const std::string& each : kernel.key) check(each, "the key");
  if (kernel.mutates) {
    for (const size_t input : *kernel.mutates)
      FL_REQUIRE(record.max_inputs < 0 || input < static_cast<size_t>(record.max_inputs), "op '{}': mutates input {} of {}", record.name, input, record.max_inputs);
  }
}

}  // namespace fuseloom::op
