// Random numbers in kernels: the arithmetic of op/philox.h written as scalars, step by step, so that the bits are those of
// the reference under every schedule.
#pragma once
#include "schedule/loop_builder.h"

namespace fuseloom::schedule {

// The number that random_uniform or random_normal `node` has as element `element` (row-major) of its result, in `type`: f32
// or f64.
ScalarId random_number(LoopBuilder& build, const graph::Node& node, DType type, const sym::Expr& element);

}  // namespace fuseloom::schedule
