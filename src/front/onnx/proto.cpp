#include "front/onnx/proto.h"

#include "base/check.h"
#include "front/onnx/wire.h"

namespace fuseloom::front::onnx {

namespace {

StringPair read_pair(WireReader r) {
  StringPair pair;
  while (r.next()) {
    switch (r.field()) {
      case 1:
        pair.key = r.bytes();
        break;
      case 2:
        pair.value = r.bytes();
        break;
      default:
        r.skip();
    }
  }
  return pair;
}

TensorProto read_tensor(WireReader r, std::string_view message) {
  TensorProto tensor;
  tensor.message = message;
  while (r.next()) {
    switch (r.field()) {
      case 1:
        r.append_varints(tensor.dims);
        break;
      case 2:
        tensor.type = static_cast<ElementType>(r.varint());
        break;
      case 3:
        tensor.segmented = true;
        r.skip();
        break;
      case 8:
        tensor.name = r.bytes();
        break;
      case 9:
        tensor.has_raw = true;
        tensor.raw = r.bytes();
        break;
      case 13:
        tensor.external_data.push_back(read_pair(r.message()));
        break;
      case 14:
        tensor.external = r.varint() == 1;
        break;
      default:
        r.skip();  // typed data: see parse_typed_data
    }
  }
  return tensor;
}

// The embedded tensor that the current field of `r` is.
TensorProto embedded_tensor(WireReader& r, WireSource& source) {
  const std::string_view message = r.bytes();
  return read_tensor(WireReader(source, message, r.depth() + 1), message);
}

class Parser {
 public:
  explicit Parser(WireSource& source) : source_(source) {}

  void read(WireReader r, ModelProto& model) {
    while (r.next()) {
      switch (r.field()) {
        case 1:
          model.ir_version = r.varint();
          break;
        case 2:
          model.producer_name = r.bytes();
          break;
        case 3:
          model.producer_version = r.bytes();
          break;
        case 4:
          model.domain = r.bytes();
          break;
        case 5:
          model.model_version = r.varint();
          break;
        case 6:
          model.doc = r.bytes();
          break;
        case 7:
          model.has_graph = true;
          read(r.message(), model.graph);
          break;
        case 8:
          model.opsets.push_back(opset(r.message()));
          break;
        case 14:
          model.metadata.push_back(read_pair(r.message()));
          break;
        case 25:
          read(r.message(), model.functions.emplace_back());
          break;
        default:
          r.skip();
      }
    }
  }

 private:
  void read(WireReader r, GraphProto& graph) {
    while (r.next()) {
      switch (r.field()) {
        case 1:
          read(r.message(), graph.nodes.emplace_back());
          break;
        case 2:
          graph.name = r.bytes();
          break;
        case 5:
          graph.initializers.push_back(embedded_tensor(r, source_));
          break;
        case 11:
          read(r.message(), graph.inputs.emplace_back());
          break;
        case 12:
          read(r.message(), graph.outputs.emplace_back());
          break;
        case 13:
          read(r.message(), graph.value_infos.emplace_back());
          break;
        case 15:
          read(r.message(), graph.sparse_initializers.emplace_back());
          break;
        default:
          r.skip();
      }
    }
  }

  void read(WireReader r, NodeProto& node) {
    while (r.next()) {
      switch (r.field()) {
        case 1:
          node.inputs.push_back(r.bytes());
          break;
        case 2:
          node.outputs.push_back(r.bytes());
          break;
        case 3:
          node.name = r.bytes();
          break;
        case 4:
          node.op_type = r.bytes();
          break;
        case 5:
          read(r.message(), node.attributes.emplace_back());
          break;
        case 7:
          node.domain = r.bytes();
          break;
        case 8:
          node.overload = r.bytes();
          break;
        default:
          r.skip();
      }
    }
  }

  void read(WireReader r, AttributeProto& attribute) {
    using Type = AttributeProto::Type;
    Type implied = Type::Undefined;
    while (r.next()) {
      switch (r.field()) {
        case 1:
          attribute.name = r.bytes();
          break;
        case 2:
          attribute.f = r.float32();
          implied = Type::Float;
          break;
        case 3:
          attribute.i = r.varint();
          implied = Type::Int;
          break;
        case 4:
          attribute.s = r.bytes();
          implied = Type::String;
          break;
        case 5:
          attribute.tensor = std::make_unique<TensorProto>(embedded_tensor(r, source_));
          implied = Type::Tensor;
          break;
        case 6:
          attribute.graph = std::make_unique<GraphProto>();
          read(r.message(), *attribute.graph);
          implied = Type::Graph;
          break;
        case 7:
          r.append_floats(attribute.floats);
          implied = Type::Floats;
          break;
        case 8:
          r.append_varints(attribute.ints);
          implied = Type::Ints;
          break;
        case 9:
          attribute.strings.push_back(r.bytes());
          implied = Type::Strings;
          break;
        case 14:
          attribute.type_proto = std::make_unique<onnx::TypeProto>();
          read(r.message(), *attribute.type_proto);
          implied = Type::TypeProto;
          break;
        case 20: {
          const int64_t type = r.varint();
          if (type < 0 || type > 14) r.fail(fmt::format("the attribute type {}", type));
          attribute.type = static_cast<Type>(type);
          break;
        }
        case 21:
          attribute.reference = r.bytes();
          break;
        case 22:
          attribute.sparse_tensor = std::make_unique<SparseTensorProto>();
          read(r.message(), *attribute.sparse_tensor);
          implied = Type::SparseTensor;
          break;
        default:
          r.skip();
      }
    }
    if (attribute.type == Type::Undefined) attribute.type = implied;
  }

  void read(WireReader r, SparseTensorProto& sparse) {
    while (r.next()) {
      switch (r.field()) {
        case 1:
          sparse.values = embedded_tensor(r, source_);
          break;
        case 2:
          sparse.indices = embedded_tensor(r, source_);
          break;
        case 3:
          r.append_varints(sparse.dims);
          break;
        default:
          r.skip();
      }
    }
  }

  void read(WireReader r, ValueInfoProto& info) {
    while (r.next()) {
      switch (r.field()) {
        case 1:
          info.name = r.bytes();
          break;
        case 2:
          read(r.message(), info.type);
          break;
        default:
          r.skip();
      }
    }
  }

  void read(WireReader r, onnx::TypeProto& type) {
    using Kind = onnx::TypeProto::Kind;
    while (r.next()) {
      switch (r.field()) {
        case 1:
          type.kind = Kind::Tensor;
          read_tensor_type(r.message(), type);
          break;
        case 4:
          type.kind = Kind::Sequence;
          read_container_type(r.message(), type);
          break;
        case 5:
          type.kind = Kind::Map;
          r.skip();
          break;
        case 7:
          type.kind = Kind::Opaque;
          r.skip();
          break;
        case 8:
          type.kind = Kind::SparseTensor;
          r.skip();
          break;
        case 9:
          type.kind = Kind::Optional;
          read_container_type(r.message(), type);
          break;
        default:
          r.skip();
      }
    }
  }

  void read_tensor_type(WireReader r, onnx::TypeProto& type) {
    while (r.next()) {
      switch (r.field()) {
        case 1:
          type.element = static_cast<ElementType>(r.varint());
          break;
        case 2:
          type.has_shape = true;
          for (WireReader shape = r.message(); shape.next();) {
            if (shape.field() == 1) {
              type.shape.push_back(dimension(shape.message()));
            } else {
              shape.skip();
            }
          }
          break;
        default:
          r.skip();
      }
    }
  }

  void read_container_type(WireReader r, onnx::TypeProto& type) {
    type.inner = std::make_unique<onnx::TypeProto>();
    while (r.next()) {
      if (r.field() == 1) {
        read(r.message(), *type.inner);
      } else {
        r.skip();
      }
    }
  }

  static DimensionProto dimension(WireReader r) {
    DimensionProto dim;
    while (r.next()) {
      switch (r.field()) {
        case 1:
          dim.kind = DimensionProto::Kind::Value;
          dim.value = r.varint();
          break;
        case 2:
          dim.kind = DimensionProto::Kind::Parameter;
          dim.parameter = r.bytes();
          break;
        default:
          r.skip();
      }
    }
    return dim;
  }

  static OperatorSetProto opset(WireReader r) {
    OperatorSetProto opset;
    while (r.next()) {
      switch (r.field()) {
        case 1:
          opset.domain = r.bytes();
          break;
        case 2:
          opset.version = r.varint();
          break;
        default:
          r.skip();
      }
    }
    return opset;
  }

  void read(WireReader r, FunctionProto& function) {
    while (r.next()) {
      switch (r.field()) {
        case 1:
          function.name = r.bytes();
          break;
        case 4:
          function.inputs.push_back(r.bytes());
          break;
        case 5:
          function.outputs.push_back(r.bytes());
          break;
        case 6:
          function.attributes.push_back(r.bytes());
          break;
        case 7:
          read(r.message(), function.nodes.emplace_back());
          break;
        case 9:
          function.opsets.push_back(opset(r.message()));
          break;
        case 10:
          function.domain = r.bytes();
          break;
        case 11:
          read(r.message(), function.default_attributes.emplace_back());
          break;
        case 13:
          function.overload = r.bytes();
          break;
        default:
          r.skip();
      }
    }
  }

  WireSource& source_;
};

}  // namespace

ModelProto parse_model(std::string_view bytes, const std::string& name) {
  WireSource source{.name = name, .bytes = bytes};
  ModelProto model;
  Parser(source).read(WireReader(source, bytes, 0), model);
  FL_REQUIRE(model.has_graph, "{}: not a valid ONNX file: it has no graph", name);
  return model;
}

TensorProto parse_tensor(std::string_view bytes, const std::string& name) {
  WireSource source{.name = name, .bytes = bytes};
  return read_tensor(WireReader(source, bytes, 0), bytes);
}

std::vector<TensorProto> parse_sequence(std::string_view bytes, const std::string& name) {
  WireSource source{.name = name, .bytes = bytes};
  std::vector<TensorProto> tensors;
  int64_t element = 1;  // SequenceProto.DataType: 1 is a tensor
  for (WireReader r(source, bytes, 0); r.next();) {
    switch (r.field()) {
      case 2:
        element = r.varint();
        break;
      case 3:
        tensors.push_back(embedded_tensor(r, source));
        break;
      default:
        r.skip();
    }
  }
  FL_SUPPORTED(element <= 1, "{}: a sequence whose elements are not tensors", name);
  return tensors;
}

OptionalBytes parse_optional(std::string_view bytes, const std::string& name) {
  WireSource source{.name = name, .bytes = bytes};
  OptionalBytes optional;
  for (WireReader r(source, bytes, 0); r.next();) {
    if (r.field() != 3 && r.field() != 5) {
      r.skip();
      continue;
    }
    optional.present = true;
    optional.sequence = r.field() == 5;
    optional.value = r.bytes();
  }
  return optional;
}

TypedData parse_typed_data(const TensorProto& tensor, const std::string& name) {
  WireSource source{.name = name, .bytes = tensor.message};
  TypedData data;
  for (WireReader r(source, tensor.message, 0); r.next();) {
    switch (r.field()) {
      case 4:
        r.append_floats(data.floats);
        break;
      case 5:
      case 7:
      case 11:
        r.append_varints(data.integers);
        break;
      case 6:
        data.strings.push_back(r.bytes());
        break;
      case 10:
        r.append_doubles(data.doubles);
        break;
      default:
        r.skip();
    }
  }
  return data;
}

std::string element_type_name(ElementType type) {
  static constexpr std::string_view kNames[] = {
      "undefined", "float",      "uint8",      "int8",         "uint16",         "int16",      "int32",
      "int64",     "string",     "bool",       "float16",      "double",         "uint32",     "uint64",
      "complex64", "complex128", "bfloat16",   "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz",
      "uint4",     "int4",       "float4e2m1", "float8e8m0",   "uint2",          "int2"};
  const auto index = static_cast<int32_t>(type);
  if (index < 0 || index >= static_cast<int32_t>(std::size(kNames))) return fmt::format("element type {}", index);
  return std::string(kNames[index]);
}

}  // namespace fuseloom::front::onnx
