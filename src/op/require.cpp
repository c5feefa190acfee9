// A run-time check on sizes, as an op: what was decided when the graph was built stays true when it runs.
#include <cstring>

#include "base/check.h"
#include "op/op.h"
#include "op/schema.h"

namespace fuseloom::op {
namespace {

void reference_require(const ReferenceContext& context) {
  for (const int64_t condition : context.attrs.integers("conditions"))
    FL_REQUIRE(condition != 0, "{}: {}", context.record->name, context.attrs.text("message"));
  const Tensor x = context.inputs[0].to_contiguous();
  if (x.count() > 0) std::memcpy(context.outputs[0].data(), x.data(), static_cast<size_t>(x.bytes()));
}

}  // namespace

void add_require_ops(OpTable& table) {
  using Kind = AttrSpec::Kind;
  table.add({.name = "require",
             .family = Family::Extern,
             .summary = "x itself, when all conditions differ from 0; else the run ends with the message",
             .attrs = {required_attr("conditions", Kind::Sizes), required_attr("message", Kind::Text)},
             .infer = [](const InferContext& context) { return std::vector<TensorType>{context.in(0)}; },
             .reference = reference_require});
}

}  // namespace fuseloom::op
