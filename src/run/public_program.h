// What a public Program (fuseloom/fuseloom.h) holds: made by compile() of `front`, or by load(), which is of this floor so
// that programs which only run models link without the compiler.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "fuseloom/fuseloom.h"
#include "run/executable.h"

namespace fuseloom {
inline namespace v0 {

struct Program::Impl {
  std::shared_ptr<const op::OpTable> ops;   // null: fuseloom's
  std::shared_ptr<run::Executable> executable;
  std::vector<ValueInfo> inputs, outputs;
  CompileInfo info;
  std::string explanation, source;
};

struct ProgramAccess {
  static Program wrap(std::shared_ptr<const Program::Impl> impl) { return Program(std::move(impl)); }
};

struct OpsAccess {
  static std::shared_ptr<const op::OpTable> table(const Ops& ops) { return ops.table_; }
};

ValueInfo value_info(std::string name, const op::TensorType& type);

}  // namespace v0
}  // namespace fuseloom
