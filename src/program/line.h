// What every kind of line has in common: the buffers it touches and the symbols it defines.
#pragma once
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "program/program.h"

namespace fuseloom::program {

// std::visit with one lambda for each kind of line.
template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

// Calls visit(BufferId&) for every buffer that the line reads or writes, in the order of the text, absent ones included.
template <class LineOrConst, class Visit>
void for_each_buffer(LineOrConst& line, Visit visit) {
  const auto visit_all = [&](auto& ids) {
    for (auto& id : ids) visit(id);
  };
  std::visit(
      [&](auto& what) {
        using What = std::decay_t<decltype(what)>;
        if constexpr (std::is_same_v<What, Launch>) {
          visit_all(what.buffers);
          if (what.product) visit(what.product->workspace);
        } else if constexpr (std::is_same_v<What, Copy>) {
          visit(what.from);
          visit(what.to);
        } else if constexpr (std::is_same_v<What, ReadSymbols>) {
          visit(what.from);
        } else if constexpr (!std::is_same_v<What, Assert>) {
          if constexpr (std::is_same_v<What, While>) visit(what.trip_count);
          if constexpr (!std::is_same_v<What, Call>) visit(what.condition);
          visit_all(what.inputs);
          visit_all(what.outputs);
        }
      },
      line.what);
}

// Every buffer that the line reads or writes, in the order of the text; absent ones left out.
std::vector<BufferId> buffers_of(const Line& line);

// Launch lines, nested programs included.
size_t launch_count(const Program& program);

// The symbols the line gives values to.
std::span<const std::string> defines_of(const Line& line);

}  // namespace fuseloom::program
