// The parts of a generated model that are the same for every model, as text. CMake makes the .cpp from the files named.
#pragma once
#include <string_view>

namespace fuseloom::emit {

std::string_view abi_header_text();   // include/fuseloom/abi.h
std::string_view support_text();      // model/support.inc
std::string_view interface_text();    // model/interface.inc
std::string_view benchmark_text();    // model/benchmark.inc

}  // namespace fuseloom::emit
