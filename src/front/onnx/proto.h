// ONNX's protobuf messages as plain structs. Text and tensor bytes are views into the file's bytes, which must outlive
// the structs; nothing large is copied. Field numbers are those of onnx.proto (the format is stable since IR version
// 3).
//
// The parser accepts any bytes: a damaged or hostile file gives one UserError. It reads structure only; whether names,
// ops and types make sense is the importer's business.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fuseloom::front::onnx {

// TensorProto.DataType.
enum class ElementType : int32_t {
  Undefined = 0,
  Float = 1,
  UInt8 = 2,
  Int8 = 3,
  UInt16 = 4,
  Int16 = 5,
  Int32 = 6,
  Int64 = 7,
  String = 8,
  Bool = 9,
  Float16 = 10,
  Double = 11,
  UInt32 = 12,
  UInt64 = 13,
  Complex64 = 14,
  Complex128 = 15,
  BFloat16 = 16,
  Float8E4M3FN = 17,
  Float8E4M3FNUZ = 18,
  Float8E5M2 = 19,
  Float8E5M2FNUZ = 20,
  UInt4 = 21,
  Int4 = 22,
  Float4E2M1 = 23,
  Float8E8M0 = 24,
  UInt2 = 25,
  Int2 = 26,
};

struct StringPair {
  std::string_view key, value;
};

struct TensorProto {
  std::string_view name;
  std::vector<int64_t> dims;
  ElementType type = ElementType::Undefined;
  bool has_raw = false;
  std::string_view raw;
  bool external = false;                  // data_location = EXTERNAL
  std::vector<StringPair> external_data;  // location, offset, length, checksum
  bool segmented = false;                 // the `segment` field: never used in practice, refused
  std::string_view message;               // the whole message: typed data is read from it on demand
};

struct SparseTensorProto {
  TensorProto values, indices;
  std::vector<int64_t> dims;
};

struct DimensionProto {
  enum class Kind : uint8_t { Unknown, Value, Parameter };
  Kind kind = Kind::Unknown;
  int64_t value = 0;
  std::string_view parameter;
};

struct TypeProto {
  enum class Kind : uint8_t { None, Tensor, Sequence, Optional, Map, SparseTensor, Opaque };
  Kind kind = Kind::None;
  ElementType element = ElementType::Undefined;  // of a tensor
  bool has_shape = false;
  std::vector<DimensionProto> shape;
  std::unique_ptr<TypeProto> inner;  // of a sequence or an optional
};

struct ValueInfoProto {
  std::string_view name;
  TypeProto type;
};

struct GraphProto;

struct AttributeProto {
  // AttributeProto.AttributeType; files of IR version 1 and 2 leave it out, then it follows from the field that is set.
  enum class Type : uint8_t {
    Undefined = 0,
    Float = 1,
    Int = 2,
    String = 3,
    Tensor = 4,
    Graph = 5,
    Floats = 6,
    Ints = 7,
    Strings = 8,
    Tensors = 9,
    Graphs = 10,
    SparseTensor = 11,
    SparseTensors = 12,
    TypeProto = 13,
    TypeProtos = 14,
  };
  std::string_view name, reference;  // reference: the function attribute this one stands for
  Type type = Type::Undefined;
  float f = 0;
  int64_t i = 0;
  std::string_view s;
  std::unique_ptr<TensorProto> tensor;
  std::unique_ptr<SparseTensorProto> sparse_tensor;
  std::unique_ptr<GraphProto> graph;
  std::unique_ptr<onnx::TypeProto> type_proto;
  std::vector<float> floats;
  std::vector<int64_t> ints;
  std::vector<std::string_view> strings;
};

struct NodeProto {
  std::string_view name, op_type, domain, overload;
  std::vector<std::string_view> inputs, outputs;  // "" is an absent optional one
  std::vector<AttributeProto> attributes;
};

struct GraphProto {
  std::string_view name;
  std::vector<NodeProto> nodes;
  std::vector<TensorProto> initializers;
  std::vector<SparseTensorProto> sparse_initializers;
  std::vector<ValueInfoProto> inputs, outputs, value_infos;
};

struct OperatorSetProto {
  std::string_view domain;
  int64_t version = 0;
};

struct FunctionProto {
  std::string_view domain, name, overload;
  std::vector<std::string_view> inputs, outputs, attributes;
  std::vector<AttributeProto> default_attributes;
  std::vector<NodeProto> nodes;
  std::vector<OperatorSetProto> opsets;
};

struct ModelProto {
  int64_t ir_version = 0, model_version = 0;
  std::string_view producer_name, producer_version, domain, doc;
  GraphProto graph;
  bool has_graph = false;
  std::vector<OperatorSetProto> opsets;
  std::vector<StringPair> metadata;
  std::vector<FunctionProto> functions;
};

// `name` names the file in errors. Throws UserError.
ModelProto parse_model(std::string_view bytes, const std::string& name);
// A file of one message, as in ONNX's backend tests.
TensorProto parse_tensor(std::string_view bytes, const std::string& name);
std::vector<TensorProto> parse_sequence(std::string_view bytes, const std::string& name);
// An optional: nothing, a tensor or a sequence, as the bytes of that message.
struct OptionalBytes {
  bool present = false;
  bool sequence = false;
  std::string_view value;
};
OptionalBytes parse_optional(std::string_view bytes, const std::string& name);

// A tensor's typed fields (float_data, int32_data, ...), read from its message.
struct TypedData {
  std::vector<float> floats;
  std::vector<double> doubles;
  std::vector<int64_t> integers;  // int32_data, int64_data and uint64_data: only one is set
  std::vector<std::string_view> strings;
};
TypedData parse_typed_data(const TensorProto& tensor, const std::string& name);

std::string element_type_name(ElementType type);  // "float16"

}  // namespace fuseloom::front::onnx
