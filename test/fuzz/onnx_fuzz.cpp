// Any bytes as an ONNX model: a graph that verifies, or one of fuseloom's errors.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "front/onnx/importer.h"
#include "fuseloom/error.h"
#include "graph/verify.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const fuseloom::front::onnx::ImportedModel model =
        fuseloom::front::onnx::import_onnx_bytes(std::string_view(reinterpret_cast<const char*>(data), size));
    fuseloom::graph::verify(model.graph);
  } catch (const fuseloom::UserError&) {
  } catch (const fuseloom::Unsupported&) {
  }
  return 0;
}
