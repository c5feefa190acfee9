// The primitive elementwise ops, and the machinery that elementwise records share: type inference by broadcasting and
// references that compute chunk by chunk in the domains of op/element.h.
#pragma once
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "op/element.h"
#include "op/op.h"

namespace fuseloom::op {

// Computes n results from n values of each input. Every data input is in one domain; a select's condition is bool.
using ChunkFn = void (*)(const void* const* inputs, void* result, int64_t n);

struct Primitive {
  enum class Result : uint8_t {
    Same,  // the data dtype
    Bool,
    Part,  // the real type of a complex input, else the data dtype
  };
  std::string_view name;
  int arity = 1;
  Result result = Result::Same;
  int cost = 1;
  bool commutative = false;
  std::array<ChunkFn, kDomainCount> functions = {};  // by domain of the data inputs; null: not defined for it
  std::string_view summary;
};

// In the order of docs/ops.md. `cast`, `bitcast` and `pow` of mixed types are records but need more than a row here.
std::span<const Primitive> primitives();
const Primitive* find_primitive(std::string_view name);

// The dtype of a primitive's result. Throws UserError "<asker>: <primitive> ..." for types it does not take.
DType primitive_result(const Primitive& primitive, std::span<const DType> inputs, std::string_view asker);

// The dtype that the numbers and attributes of a rule have: that of the first input that is not bool, else bool.
DType rule_dtype(std::span<const DType> inputs);
// The dtype of a rule's value. `asker` names the op in errors.
DType rule_result(const ScalarNode& rule, std::span<const DType> inputs, std::string_view asker);

// Broadcasts every present input. UserError names the op and both types.
Shape broadcast_inputs(const InferContext& context);

// The default inference and reference of a record with a rule (OpTable::add fills them in).
std::vector<TensorType> infer_by_rule(const InferContext& context);
void reference_by_rule(const ReferenceContext& context);

}  // namespace fuseloom::op
