// Any bytes as graph text: a UserError, or a graph that verifies and prints to text that parses to the same text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fuseloom/error.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "op/op.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fuseloom;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const graph::Graph parsed = graph::parse_graph(text, op::standard_ops());
    graph::verify(parsed);
    const std::string printed = graph::to_string(parsed);
    const graph::Graph again = graph::parse_graph(printed, op::standard_ops(), "<printed>", graph::constant_pool(parsed));
    if (graph::to_string(again) != printed) std::abort();
  } catch (const UserError&) {
  } catch (const Unsupported&) {
  }
  return 0;
}
