#include <utility>

#include "base/check.h"
#include "run/public_program.h"

namespace fuseloom {
inline namespace v0 {

namespace {

op::AttrSpec::Kind kind_of(AttributeKind kind) {
  switch (kind) {
    case AttributeKind::Integer: return op::AttrSpec::Kind::Integer;
    case AttributeKind::Real: return op::AttrSpec::Kind::Real;
    case AttributeKind::Text: return op::AttrSpec::Kind::Text;
    case AttributeKind::Type: return op::AttrSpec::Kind::Type;
    case AttributeKind::Integers: return op::AttrSpec::Kind::Integers;
    case AttributeKind::Reals: return op::AttrSpec::Kind::Reals;
    case AttributeKind::Sizes: return op::AttrSpec::Kind::Sizes;
    case AttributeKind::Tensor: return op::AttrSpec::Kind::Value;
  }
  throw UserError("an attribute of an unknown kind");
}

Sizes sizes_of(const op::Shape& shape) {
  Sizes sizes;
  for (const sym::Expr& size : shape) sizes.emplace_back(sym::to_string(size));
  return sizes;
}

Attributes attributes_of(const op::Attrs& attrs) {
  Attributes attributes;
  for (const auto& [name, value] : attrs.all()) {
    attributes.emplace(name, std::visit(
                                 [](const auto& each) -> Attribute {
                                   if constexpr (std::is_same_v<std::decay_t<decltype(each)>, op::Shape>) {
                                     return sizes_of(each);
                                   } else {
                                     return each;
                                   }
                                 },
                                 value));
  }
  return attributes;
}

op::InferFn infer_of(const std::string& name, CustomOp::InferFunction infer) {
  if (!infer) return {};
  return [name, infer = std::move(infer)](const op::InferContext& context) {
    std::vector<TypeInfo> inputs;
    for (const op::TensorType& type : context.inputs) inputs.push_back({type.dtype, sizes_of(type.shape)});
    const std::vector<TypeInfo> given = infer(inputs, attributes_of(context.attrs));
    FL_REQUIRE(static_cast<int64_t>(given.size()) == context.output_count, "op '{}': its infer gives {} types for {} results", name, given.size(),
               context.output_count);
    std::vector<op::TensorType> types;
    for (const TypeInfo& each : given) {
      op::TensorType& type = types.emplace_back(op::TensorType{each.dtype, {}});
      for (const Size& size : each.sizes) type.shape.push_back(sym::parse_expr(size.text()));
    }
    return types;
  };
}

op::ReferenceFn reference_of(CustomOp::ReferenceFunction reference) {
  if (!reference) return {};
  return [reference = std::move(reference)](const op::ReferenceContext& context) { reference(context.inputs, attributes_of(context.attrs), context.outputs); };
}

}  // namespace

Ops::Ops() : table_(std::make_shared<op::OpTable>(op::make_standard_ops())) {}

void Ops::add(CustomOp custom) {
  FL_REQUIRE(!custom.name.empty(), "an op without a name");
  FL_REQUIRE(table_->find(custom.name) == nullptr, "there is an op '{}' already", custom.name);
  FL_REQUIRE(!custom.rule.empty() || custom.kernel || custom.reference, "op '{}': has no rule, no kernel and no reference, so that nothing can compute it",
             custom.name);
  FL_REQUIRE(!custom.rule.empty() || custom.infer, "op '{}': needs a rule for the types and shapes of its results (infer)", custom.name);
  op::OpRecord record{.name = custom.name,
                      .family = custom.rule.empty() ? op::Family::Extern : op::Family::Elementwise,
                      .summary = custom.summary,
                      .min_inputs = custom.inputs,
                      .max_inputs = custom.inputs,
                      .min_outputs = custom.outputs,
                      .max_outputs = custom.outputs,
                      .infer = infer_of(custom.name, std::move(custom.infer)),
                      .reference = reference_of(std::move(custom.reference)),
                      .rule = std::move(custom.rule)};
  for (const CustomAttribute& attribute : custom.attributes) record.attrs.push_back({attribute.name, kind_of(attribute.kind), attribute.required});
  if (custom.kernel) {
    op::SourceKernel kernel{.helpers = std::move(custom.kernel->helpers),
                            .source = std::move(custom.kernel->source),
                            .configurations = {},
                            .extent = std::move(custom.kernel->extent),
                            .scratch_bytes = std::move(custom.kernel->scratch_bytes),
                            .work = std::move(custom.kernel->work),
                            .key = std::move(custom.kernel->key),
                            .mutates = std::move(custom.kernel->mutates)};
    for (KernelConfiguration& each : custom.kernel->configurations)
      kernel.configurations.push_back({.constants = std::move(each.constants), .condition = std::move(each.condition)});
    record.kernel = std::move(kernel);
  }
  table_->add(std::move(record));
}

}  // namespace v0
}  // namespace fuseloom
