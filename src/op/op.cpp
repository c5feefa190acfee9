#include "op/op.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"
#include "base/lexer.h"
#include "op/elementwise.h"

namespace fuseloom::op {

void InferContext::fail(const std::string& words) const { throw UserError(record->name + ": " + words); }

// ---- scalar rules
// ----------------------------------------------------------------------------------------------------
namespace {

bool is_input_name(std::string_view name) {
  return name.size() > 1 && name[0] == 'x' &&
         std::all_of(name.begin() + 1, name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

ScalarNode parse_rule_node(base::Lexer& lexer) {
  using Kind = ScalarNode::Kind;
  const base::Token& token = lexer.peek();
  if (token.kind != base::Token::Kind::Name || token.is("inf") || token.is("nan")) {
    return {.kind = Kind::Constant, .constant = lexer.expect_number()};
  }
  std::string name = lexer.expect_name();
  if (lexer.accept("(")) {
    ScalarNode node{.kind = Kind::Call, .name = std::move(name)};
    do {
      node.args.push_back(parse_rule_node(lexer));
    } while (lexer.accept(","));
    lexer.expect(")");
    return node;
  }
  if (is_input_name(name)) return {.kind = Kind::Input, .input = std::stoll(name.substr(1))};
  return {.kind = Kind::Attribute, .name = std::move(name)};
}

// `rule` with its inputs replaced by `args`.
ScalarNode instantiate(const ScalarNode& rule, std::span<const ScalarNode> args) {
  if (rule.kind == ScalarNode::Kind::Input) return args[static_cast<size_t>(rule.input)];
  ScalarNode node = rule;
  for (ScalarNode& arg : node.args) arg = instantiate(arg, args);
  return node;
}

// Replaces calls of ops that have a rule themselves by that rule, so that only primitives are called.
ScalarNode inline_calls(const OpTable& table, const OpRecord& record, const ScalarNode& node) {
  ScalarNode result = node;
  for (ScalarNode& arg : result.args) arg = inline_calls(table, record, arg);
  switch (node.kind) {
    case ScalarNode::Kind::Constant:
      break;
    case ScalarNode::Kind::Input:
      FL_CHECK(record.max_inputs < 0 || node.input < record.max_inputs,
               "the rule of {} reads x{}, but the op has {} inputs", record.name, node.input, record.max_inputs);
      break;
    case ScalarNode::Kind::Attribute:
      FL_CHECK(std::any_of(record.attrs.begin(), record.attrs.end(),
                           [&](const AttrSpec& spec) { return spec.name == node.name; }),
               "the rule of {} uses '{}', which is no attribute of it", record.name, node.name);
      break;
    case ScalarNode::Kind::Call: {
      const OpRecord* callee = table.find(node.name);
      FL_CHECK(callee != nullptr && callee->family == Family::Elementwise,
               "the rule of {} calls '{}', which is no elementwise op", record.name, node.name);
      FL_CHECK(static_cast<int>(node.args.size()) == callee->min_inputs,
               "the rule of {} calls {} with {} arguments, it takes {}", record.name, node.name, node.args.size(),
               callee->min_inputs);
      if (callee->scalar) result = inline_calls(table, record, instantiate(*callee->scalar, result.args));
      break;
    }
  }
  return result;
}

int rule_cost(const OpTable& table, const ScalarNode& node) {
  int cost = node.kind == ScalarNode::Kind::Call ? table.at(node.name).cost : 0;
  for (const ScalarNode& arg : node.args) cost += rule_cost(table, arg);
  return cost;
}

}  // namespace

ScalarNode parse_scalar_rule(std::string_view text) {
  base::Lexer lexer(text, "rule");
  ScalarNode node = parse_rule_node(lexer);
  if (!lexer.at_end()) lexer.fail(fmt::format("expected the end of the rule, found '{}'", lexer.peek().text));
  return node;
}

// ---- the table
// -------------------------------------------------------------------------------------------------------
void OpTable::add(OpRecord record) {
  FL_CHECK(!records_.contains(record.name), "the op '{}' is added twice", record.name);
  if (!record.rule.empty()) {
    record.scalar = inline_calls(*this, record, parse_scalar_rule(record.rule));
    if (record.cost == 1) record.cost = std::max(1, rule_cost(*this, *record.scalar));
    if (!record.infer) record.infer = infer_by_rule;
    if (!record.reference) record.reference = reference_by_rule;
  }
  if (record.kernel) {
    check_source_kernel(record);
    record.family = Family::Extern;
  }
  std::string name = record.name;
  std::unique_ptr<OpRecord> owned = std::make_unique<OpRecord>(std::move(record));
  order_.push_back(owned.get());
  records_.emplace(std::move(name), std::move(owned));
}

const OpRecord* OpTable::find(std::string_view name) const {
  const auto it = records_.find(name);
  return it == records_.end() ? nullptr : it->second.get();
}

namespace {

// Levenshtein distance.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

}  // namespace

const OpRecord& OpTable::at(std::string_view name) const {
  if (const OpRecord* record = find(name)) return *record;
  std::vector<std::pair<size_t, std::string>> close;
  for (const OpRecord* record : order_) {
    const size_t distance = edit_distance(name, record->name);
    if (distance <= std::max<size_t>(2, name.size() / 3)) close.emplace_back(distance, record->name);
  }
  std::stable_sort(close.begin(), close.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string hint;
  for (size_t i = 0; i < std::min<size_t>(close.size(), 3); ++i)
    hint += (i == 0 ? "; close names: " : ", ") + close[i].second;
  throw UserError(fmt::format("there is no op '{}'{}", name, hint));
}

std::vector<const OpRecord*> OpTable::all() const { return order_; }

OpTable make_standard_ops() {
  OpTable table;
  add_elementwise_ops(table);
  add_activation_ops(table);
  add_view_ops(table);
  add_source_ops(table);
  add_reduction_ops(table);
  add_gather_ops(table);
  add_contraction_ops(table);
  add_window_ops(table);
  add_normalization_ops(table);
  add_quantize_ops(table);
  add_attention_ops(table);
  add_select_ops(table);
  add_resample_ops(table);
  add_recurrent_ops(table);
  add_signal_ops(table);
  add_require_ops(table);
  add_control_ops(table);
  return table;
}

const OpTable& standard_ops() {
  static const OpTable table = make_standard_ops();
  return table;
}

// ---- inference and execution
// -----------------------------------------------------------------------------------------
namespace {

const char* kind_words(AttrSpec::Kind kind) {
  switch (kind) {
    case AttrSpec::Kind::Integer:
      return "an integer";
    case AttrSpec::Kind::Real:
      return "a number";
    case AttrSpec::Kind::Text:
      return "text";
    case AttrSpec::Kind::Type:
      return "an element type";
    case AttrSpec::Kind::Integers:
      return "a list of integers";
    case AttrSpec::Kind::Reals:
      return "a list of reals";
    case AttrSpec::Kind::Sizes:
      return "a list of sizes";
    case AttrSpec::Kind::Value:
      return "a tensor";
  }
  __builtin_unreachable();
}

bool has_kind(const AttrValue& value, AttrSpec::Kind kind) {
  switch (kind) {
    case AttrSpec::Kind::Integer:
      return std::holds_alternative<int64_t>(value);
    case AttrSpec::Kind::Real:
      return std::holds_alternative<double>(value) || std::holds_alternative<int64_t>(value);
    case AttrSpec::Kind::Text:
      return std::holds_alternative<std::string>(value);
    case AttrSpec::Kind::Type:
      return std::holds_alternative<DType>(value);
    case AttrSpec::Kind::Integers:
      return std::holds_alternative<std::vector<int64_t>>(value);
    case AttrSpec::Kind::Reals:
      return std::holds_alternative<std::vector<double>>(value);
    case AttrSpec::Kind::Sizes:
      return std::holds_alternative<Shape>(value) || std::holds_alternative<std::vector<int64_t>>(value);
    case AttrSpec::Kind::Value:
      return std::holds_alternative<Tensor>(value);
  }
  __builtin_unreachable();
}

std::string count_words(int low, int high, const char* what) {
  if (high < 0) return fmt::format("at least {} {}", low, what);
  if (low == high) return fmt::format("{} {}", low, what);
  return fmt::format("{} to {} {}", low, high, what);
}

void check_schema(const OpRecord& record, std::span<const TensorType> inputs, std::span<const char> present,
                  const Attrs& attrs, int64_t output_count) {
  const int64_t given = static_cast<int64_t>(inputs.size());
  FL_CHECK(inputs.size() == present.size(), "{}: {} inputs, but {} flags of presence", record.name, inputs.size(),
           present.size());
  FL_REQUIRE(given >= record.min_inputs && (record.max_inputs < 0 || given <= record.max_inputs),
             "{}: takes {}, found {}", record.name, count_words(record.min_inputs, record.max_inputs, "inputs"), given);
  for (int i = 0; i < record.min_inputs; ++i) {
    FL_REQUIRE(present[static_cast<size_t>(i)] != 0, "{}: input {} is required, but absent", record.name, i);
  }
  FL_REQUIRE(output_count >= record.min_outputs && (record.max_outputs < 0 || output_count <= record.max_outputs),
             "{}: gives {}, {} are asked for", record.name,
             count_words(record.min_outputs, record.max_outputs, "outputs"), output_count);
  for (const AttrSpec& spec : record.attrs) {
    const auto it = attrs.all().find(spec.name);
    if (it == attrs.all().end()) {
      FL_REQUIRE(!spec.required, "{}: the attribute '{}' ({}) is missing", record.name, spec.name,
                 kind_words(spec.kind));
      continue;
    }
    FL_REQUIRE(has_kind(it->second, spec.kind), "{}: the attribute '{}' must be {}, found {}", record.name, spec.name,
               kind_words(spec.kind), to_string(it->second));
  }
  for (const auto& [name, value] : attrs.all()) {
    const auto has_its_name = [&attribute = name](const AttrSpec& spec) { return spec.name == attribute; };
    if (std::any_of(record.attrs.begin(), record.attrs.end(), has_its_name)) continue;
    std::string known;
    for (const AttrSpec& spec : record.attrs) known += (known.empty() ? "" : ", ") + spec.name;
    throw UserError(fmt::format("{}: there is no attribute '{}'{}", record.name, name,
                                known.empty() ? "; the op has none" : "; the op has " + known));
  }
}

}  // namespace

std::vector<TensorType> infer_types(const OpRecord& record, std::span<const TensorType> inputs,
                                    std::span<const char> present, const Attrs& attrs, int64_t output_count) {
  check_schema(record, inputs, present, attrs, output_count);
  FL_CHECK(record.infer != nullptr, "{}: the op has no type inference; its types are given", record.name);
  std::vector<TensorType> types = record.infer(
      {.record = &record, .inputs = inputs, .present = present, .attrs = attrs, .output_count = output_count});
  FL_CHECK(static_cast<int64_t>(types.size()) == output_count, "{}: inference gave {} types for {} outputs",
           record.name, types.size(), output_count);
  return types;
}

std::vector<Tensor> run_reference(const OpRecord& record, std::span<const Tensor> inputs, const Attrs& concrete_attrs,
                                  int64_t output_count) {
  FL_SUPPORTED(record.reference != nullptr, "{}: the op has no reference, so that only its kernel can tell its result", record.name);
  std::vector<TensorType> types;
  std::vector<char> present;
  for (const Tensor& input : inputs) {
    types.push_back({.dtype = input.dtype(), .shape = shape_of(input.dims())});
    present.push_back(input.valid() ? 1 : 0);
  }
  std::vector<Tensor> outputs;
  for (const TensorType& type : infer_types(record, types, present, concrete_attrs, output_count)) {
    Dims dims;
    for (const sym::Expr& size : type.shape) {
      if (size.is_const()) dims.push_back(*size.as_const());
    }
    const bool sized_by_data = dims.size() != type.shape.size();
    outputs.push_back(sized_by_data ? Tensor() : Tensor(type.dtype, std::move(dims)));
  }
  record.reference({.record = &record, .inputs = inputs, .attrs = concrete_attrs, .outputs = outputs});
  return outputs;
}

}  // namespace fuseloom::op
