// A strong integer id: Id<struct NodeTag> and Id<struct ValueTag> cannot be swapped by mistake.
#pragma once
#include <compare>
#include <cstdint>
#include <functional>

namespace fuseloom::base {

template <class Tag>
struct Id {
  int32_t index = -1;
  constexpr bool valid() const { return index >= 0; }
  friend constexpr auto operator<=>(Id, Id) = default;
};

}  // namespace fuseloom::base

template <class Tag>
struct std::hash<fuseloom::base::Id<Tag>> {
  size_t operator()(fuseloom::base::Id<Tag> id) const { return std::hash<int32_t>()(id.index); }
};
