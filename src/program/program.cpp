#include "program/program.h"

#include <algorithm>

#include "base/check.h"
#include "program/line.h"

namespace fuseloom::program {

std::string_view device_name(Device device) {
  switch (device) {
    case Device::Cpu: return "cpu";
    case Device::Cuda: return "cuda";
  }
  return "?";
}

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::None: return "none";
    case Activation::Relu: return "relu";
    case Activation::GeluTanh: return "gelu_tanh";
  }
  return "?";
}

BufferId Program::add_buffer(Buffer added) {
  if (added.name.empty()) {
    // A number, as in the graph: named values never look like one, so the first try is nearly always free.
    const auto taken = [&](const std::string& name) {
      return std::any_of(buffers.begin(), buffers.end(), [&](const Buffer& buffer) { return buffer.name == name; });
    };
    size_t number = buffers.size();
    do added.name = std::to_string(number++);
    while (taken(added.name));
  }
  buffers.push_back(std::move(added));
  return BufferId{static_cast<int32_t>(buffers.size()) - 1};
}

BufferId storage_of(const Program& program, BufferId id) {
  // A chain of views is shorter than the list of buffers unless it is a cycle.
  for (size_t steps = 0; program.buffer(id).kind == BufferKind::View; ++steps) {
    FL_CHECK(steps < program.buffers.size(), "program {}: the views of %{} form a cycle", program.name, program.buffer(id).name);
    id = program.buffer(id).base;
  }
  return id;
}

std::vector<BufferId> buffers_of(const Line& line) {
  std::vector<BufferId> found;
  for_each_buffer(line, [&](BufferId id) {
    if (id.valid()) found.push_back(id);
  });
  return found;
}

size_t launch_count(const Program& program) {
  size_t count = 0;
  for (const Line& line : program.lines) {
    if (std::holds_alternative<Launch>(line.what)) ++count;
    if (const If* branch = std::get_if<If>(&line.what)) count += launch_count(*branch->then) + launch_count(*branch->otherwise);
    if (const While* loop = std::get_if<While>(&line.what)) count += launch_count(*loop->body);
  }
  return count;
}

std::span<const std::string> defines_of(const Line& line) {
  return std::visit(Overloaded{
                        [](const Launch&) { return std::span<const std::string>(); },
                        [](const Copy&) { return std::span<const std::string>(); },
                        [](const Assert&) { return std::span<const std::string>(); },
                        [](const auto& defining) { return std::span<const std::string>(defining.defines); },
                    },
                    line.what);
}

}  // namespace fuseloom::program
