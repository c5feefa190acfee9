// The version of fuseloom. CMakeLists.txt reads it from here.
#pragma once
#include <string_view>

namespace fuseloom::base {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace fuseloom::base
