// What every kind of line has in common: the buffers it touches and the symbols it defines.
#pragma once
#include <span>
#include <string>
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

// Every buffer that the line reads or writes, in the order of the text; absent ones left out.
std::vector<BufferId> buffers_of(const Line& line);

// The symbols the line gives values to.
std::span<const std::string> defines_of(const Line& line);

}  // namespace fuseloom::program
