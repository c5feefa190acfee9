// Contents → bytes.
//
//   1. Each target's program becomes a FlatBuffer; its tensors are collected, each content once.
//   2. Sections get their places: programs, machine code, texts, then tensors, which are the bulk and are read last.
//   3. The index and the header are built; everything is handed out front to back.
#include <archive_generated.h>

#include <cstring>
#include <unordered_map>

#include "base/check.h"
#include "base/hash.h"
#include "program/archive_format.h"
#include "program/line.h"

namespace fuseloom::program {

namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;
using sym::Expr;

// Tensors of the archive, by content.
class TensorList {
 public:
  uint32_t add(const Tensor& tensor) { return add(op::tensor_hash(tensor), tensor); }
  uint32_t add(const std::string& key, const Tensor& tensor) {
    const auto [found, added] = numbers_.emplace(key, static_cast<uint32_t>(tensors.size()));
    if (added) tensors.emplace_back(key, tensor.to_contiguous());
    return found->second;
  }
  std::vector<std::pair<std::string, Tensor>> tensors;

 private:
  std::unordered_map<std::string, uint32_t> numbers_;
};

class ProgramWriter {
 public:
  explicit ProgramWriter(TensorList& tensors) : tensors_(tensors) {
    expr(0);
    expr(1);
  }

  std::vector<std::byte> write(const ArchiveTarget& target) {
    const Offset<wire::Program> program = write_program(target.program);
    std::vector<Offset<wire::Entry>> entries;
    for (const std::vector<Dims>& dims : target.entries) {
      std::vector<int64_t> sizes;
      for (const Dims& each : dims) sizes.insert(sizes.end(), each.begin(), each.end());
      entries.push_back(wire::CreateEntry(builder_, builder_.CreateVector(sizes)));
    }
    const auto symbols = builder_.CreateVectorOfStrings(symbols_);
    const auto nodes = builder_.CreateVectorOfStructs(nodes_);
    const auto args = builder_.CreateVector(args_);
    builder_.Finish(wire::CreateProgramFile(builder_, symbols, nodes, args, program, builder_.CreateVector(entries)));
    const std::byte* const begin = reinterpret_cast<const std::byte*>(builder_.GetBufferPointer());
    return {begin, begin + builder_.GetSize()};
  }

 private:
  // ---- expressions
  uint32_t expr(const Expr& value) {
    if (const auto known = exprs_.find(value); known != exprs_.end()) return known->second;
    wire::ExprKind kind{};
    int64_t number = 0;
    std::vector<uint32_t> args;
    if (value.is_const()) {
      kind = wire::ExprKind::Const;
      number = *value.as_const();
    } else if (value.is_symbol()) {
      kind = wire::ExprKind::Symbol;
      number = symbol(value.name());
    } else {
      kind = static_cast<wire::ExprKind>(value.kind());
      for (const Expr& arg : value.args()) args.push_back(expr(arg));
    }
    FL_SUPPORTED(args.size() <= UINT16_MAX, "an archive holds expressions of at most {} terms, this one has {}", UINT16_MAX, args.size());
    nodes_.emplace_back(number, static_cast<uint32_t>(args_.size()), static_cast<uint16_t>(args.size()), kind);
    args_.insert(args_.end(), args.begin(), args.end());
    return exprs_[value] = static_cast<uint32_t>(nodes_.size() - 1);
  }
  int64_t symbol(const std::string& name) {
    const auto [found, added] = symbol_numbers_.emplace(name, static_cast<int64_t>(symbols_.size()));
    if (added) symbols_.push_back(name);
    return found->second;
  }
  template <class Exprs>
  Offset<flatbuffers::Vector<uint32_t>> exprs(const Exprs& values) {
    std::vector<uint32_t> numbers;
    for (const Expr& value : values) numbers.push_back(expr(value));
    return builder_.CreateVector(numbers);
  }

  // ---- small things
  Offset<flatbuffers::String> text(const std::string& value) { return builder_.CreateSharedString(value); }
  Offset<flatbuffers::Vector<Offset<flatbuffers::String>>> texts(const std::vector<std::string>& values) {
    std::vector<Offset<flatbuffers::String>> offsets;
    for (const std::string& value : values) offsets.push_back(text(value));
    return builder_.CreateVector(offsets);
  }
  Offset<flatbuffers::Vector<int32_t>> ids(const std::vector<BufferId>& buffers) {
    std::vector<int32_t> numbers;
    for (const BufferId id : buffers) numbers.push_back(id.index);
    return builder_.CreateVector(numbers);
  }
  Offset<wire::Type> type(const op::TensorType& value) {
    return wire::CreateType(builder_, static_cast<wire::DType>(value.dtype), exprs(value.shape));
  }
  template <class T>
  Offset<flatbuffers::Vector<Offset<T>>> tables(const std::vector<Offset<T>>& offsets) {
    return builder_.CreateVector(offsets);
  }

  // ---- attributes
  std::pair<wire::AttributeValue, Offset<void>> value_of(const op::AttrValue& value) {
    using Kind = wire::AttributeValue;
    return std::visit(
        Overloaded{
            [&](int64_t v) { return std::pair(Kind::IntegerValue, wire::CreateIntegerValue(builder_, v).Union()); },
            [&](double v) { return std::pair(Kind::RealValue, wire::CreateRealValue(builder_, v).Union()); },
            [&](const std::string& v) { return std::pair(Kind::TextValue, wire::CreateTextValue(builder_, text(v)).Union()); },
            [&](DType v) { return std::pair(Kind::TypeValue, wire::CreateTypeValue(builder_, static_cast<wire::DType>(v)).Union()); },
            [&](const std::vector<int64_t>& v) {
              return std::pair(Kind::IntegersValue, wire::CreateIntegersValue(builder_, builder_.CreateVector(v)).Union());
            },
            [&](const std::vector<double>& v) {
              return std::pair(Kind::RealsValue, wire::CreateRealsValue(builder_, builder_.CreateVector(v)).Union());
            },
            [&](const op::Shape& v) { return std::pair(Kind::SizesValue, wire::CreateSizesValue(builder_, exprs(v)).Union()); },
            [&](const Tensor& v) { return std::pair(Kind::TensorValue, wire::CreateTensorValue(builder_, tensors_.add(v)).Union()); },
        },
        value);
  }

  // ---- lines
  std::pair<wire::LineKind, Offset<void>> write(const Launch& launch) {
    std::vector<Offset<wire::Variant>> variants;
    for (const Variant& variant : launch.variants) {
      const Variant none;
      Offset<flatbuffers::Vector<uint32_t>> grid;
      Offset<flatbuffers::Vector<int32_t>> block, cluster;
      if (variant.grid != none.grid) grid = exprs(variant.grid);
      if (variant.block != none.block) block = builder_.CreateVector(variant.block.data(), variant.block.size());
      if (variant.cluster != none.cluster) cluster = builder_.CreateVector(variant.cluster.data(), variant.cluster.size());
      const uint32_t condition = expr(variant.condition), extent = expr(variant.extent);
      variants.push_back(wire::CreateVariant(builder_, condition, variant.kernel, extent, expr(variant.scratch_bytes), grid, block, cluster,
                                             expr(variant.shared_bytes), variant.cooperative));
    }
    std::vector<wire::InPlace> in_place;
    for (const auto& [written, read] : launch.in_place) in_place.emplace_back(written.index, read.index);
    const auto all = tables(variants);
    const auto buffers = ids(launch.buffers);
    const auto sizes = exprs(launch.sizes);
    const uint32_t work = expr(launch.work), bytes = expr(launch.bytes);
    const auto pairs = builder_.CreateVectorOfStructs(in_place);
    Offset<wire::MatrixProduct> product;
    if (launch.product) product = write(*launch.product);
    return {wire::LineKind::Launch, wire::CreateLaunch(builder_, all, buffers, sizes, work, bytes, pairs, product).Union()};
  }
  Offset<wire::Operand> write(const MatrixProduct::Operand& operand) {
    const uint32_t offset = expr(operand.offset), batch = expr(operand.batch_stride), row = expr(operand.row_stride);
    return wire::CreateOperand(builder_, operand.buffer, offset, batch, row, expr(operand.column_stride));
  }
  Offset<wire::MatrixProduct> write(const MatrixProduct& product) {
    const auto left = write(product.left), right = write(product.right), result = write(product.result);
    const uint32_t rows = expr(product.rows), columns = expr(product.columns), depth = expr(product.depth), batch = expr(product.batch);
    return wire::CreateMatrixProduct(builder_, rows, columns, depth, batch, left, right, result, product.bias, expr(product.bias_offset),
                                     static_cast<wire::Activation>(product.activation), product.workspace.index);
  }
  std::pair<wire::LineKind, Offset<void>> write(const Call& call) {
    std::vector<Offset<wire::Attribute>> attributes;
    for (const auto& [name, attr] : call.attrs.all()) {
      const auto [kind, value] = value_of(attr);
      attributes.push_back(wire::CreateAttribute(builder_, text(name), kind, value));
    }
    const auto op = text(call.op->name);
    const auto all = tables(attributes);
    const auto inputs = ids(call.inputs), outputs = ids(call.outputs);
    return {wire::LineKind::Call, wire::CreateCall(builder_, op, all, inputs, outputs, texts(call.defines)).Union()};
  }
  std::pair<wire::LineKind, Offset<void>> write(const Copy& copy) {
    return {wire::LineKind::Copy, wire::CreateCopy(builder_, copy.from.index, copy.to.index).Union()};
  }
  std::pair<wire::LineKind, Offset<void>> write(const ReadSymbols& reading) {
    return {wire::LineKind::ReadSymbols, wire::CreateReadSymbols(builder_, reading.from.index, texts(reading.defines)).Union()};
  }
  std::pair<wire::LineKind, Offset<void>> write(const Assert& check) {
    return {wire::LineKind::Assert, wire::CreateAssert(builder_, expr(check.condition), text(check.message)).Union()};
  }
  std::pair<wire::LineKind, Offset<void>> write(const If& branch) {
    const auto then = write_program(*branch.then), otherwise = write_program(*branch.otherwise);
    const auto inputs = ids(branch.inputs), outputs = ids(branch.outputs);
    return {wire::LineKind::If,
            wire::CreateIf(builder_, branch.condition.index, then, otherwise, inputs, outputs, texts(branch.defines)).Union()};
  }
  std::pair<wire::LineKind, Offset<void>> write(const While& loop) {
    const auto body = write_program(*loop.body);
    const auto inputs = ids(loop.inputs), outputs = ids(loop.outputs);
    return {wire::LineKind::While, wire::CreateWhile(builder_, body, loop.trip_count.index, loop.condition.index, inputs, loop.carried,
                                                     loop.scans, outputs, texts(loop.defines))
                                       .Union()};
  }
  Offset<flatbuffers::Vector<Offset<wire::Line>>> lines(const std::vector<Line>& all) {
    std::vector<Offset<wire::Line>> offsets;
    for (const Line& line : all) {
      const auto [kind, what] = std::visit([&](const auto& each) { return write(each); }, line.what);
      const auto nodes = builder_.CreateVector(line.nodes);
      offsets.push_back(wire::CreateLine(builder_, kind, what, nodes, text(line.origin)));
    }
    return tables(offsets);
  }

  // ---- programs
  Offset<wire::Program> write_program(const Program& program) {
    std::vector<Offset<wire::Type>> input_types;
    for (const op::TensorType& each : program.input_types) input_types.push_back(type(each));
    std::vector<Offset<wire::SymbolRange>> ranges;
    for (const auto& [symbol, range] : program.facts.symbols)
      ranges.push_back(wire::CreateSymbolRange(builder_, text(symbol), range.low, range.high, range.divisor));
    std::vector<Offset<wire::SymbolBelow>> below;
    for (const auto& [symbol, bound] : program.facts.upper_exclusive)
      below.push_back(wire::CreateSymbolBelow(builder_, text(symbol), expr(bound)));
    std::vector<Offset<wire::Buffer>> buffers;
    for (const Buffer& buffer : program.buffers) {
      const auto name = text(buffer.name);
      const auto its_type = type(buffer.type);
      buffers.push_back(wire::CreateBuffer(builder_, name, static_cast<wire::BufferKind>(buffer.kind), its_type, buffer.index,
                                           buffer.base.index, expr(buffer.offset)));
    }
    std::vector<uint32_t> constants;
    for (const Tensor& constant : program.constants) constants.push_back(tensors_.add(constant));
    std::vector<std::string> kernels;
    for (const KernelRef& kernel : program.kernels) kernels.push_back(kernel.name);
    std::vector<Offset<wire::Output>> outputs;
    for (const Output& output : program.outputs) {
      const auto name = text(output.name);
      const auto its_type = type(output.type);
      Offset<flatbuffers::Vector<uint32_t>> strides;
      if (output.strides) strides = exprs(*output.strides);
      outputs.push_back(wire::CreateOutput(builder_, name, output.buffer.index, its_type, strides, expr(output.offset)));
    }
    const auto init = lines(program.init), body = lines(program.lines);
    const auto nonzero = exprs(program.facts.nonzero);
    const auto name = text(program.name);
    const auto input_names = texts(program.input_names), outer = texts(program.outer_symbols), kernel_names = texts(kernels);
    return wire::CreateProgram(builder_, name, static_cast<wire::Device>(program.device), input_names, tables(input_types), outer, tables(ranges),
                               nonzero, tables(below), tables(buffers), builder_.CreateVector(constants), kernel_names, init, body,
                               tables(outputs), builder_.CreateVector(program.placement_order));
  }

  TensorList& tensors_;
  FlatBufferBuilder builder_;
  std::unordered_map<Expr, uint32_t> exprs_;
  std::vector<wire::ExprNode> nodes_;
  std::vector<uint32_t> args_;
  std::vector<std::string> symbols_;
  std::unordered_map<std::string, int64_t> symbol_numbers_;
};

// The sections in order, and where each lies.
class SectionList {
 public:
  wire::Section add(std::span<const std::byte> bytes) {
    const base::Hash128 hash = base::hash_bytes(bytes.data(), bytes.size());
    const wire::Section section(size_, bytes.size(), wire::Hash(hash.low, hash.high));
    size_ += padded(bytes.size());
    sections_.push_back(bytes);
    return section;
  }
  uint64_t size() const { return size_; }
  std::span<const std::span<const std::byte>> all() const { return sections_; }

 private:
  std::vector<std::span<const std::byte>> sections_;
  uint64_t size_ = 0;
};

void hand_out(const ByteSink& sink, std::span<const std::byte> bytes) {
  static constexpr std::byte kZeros[kArchiveAlignment] = {};
  if (!bytes.empty()) sink(bytes);
  const size_t rest = padded(bytes.size()) - bytes.size();
  if (rest > 0) sink({kZeros, rest});
}

template <class T>
std::span<const std::byte> bytes_of(const T& container) {
  return std::as_bytes(std::span(container.data(), container.size()));
}

}  // namespace

void write_archive(const ArchiveContents& contents, const ByteSink& sink) {
  // 1. Programs.
  TensorList tensors;
  std::vector<std::vector<std::byte>> programs;
  for (const ArchiveTarget& target : contents.targets) programs.push_back(ProgramWriter(tensors).write(target));
  for (const auto& [key, tensor] : contents.pool) tensors.add(key, tensor);

  // 2. and 3. Sections get their places as the index is built.
  SectionList sections;
  FlatBufferBuilder builder;
  std::vector<Offset<wire::Target>> targets;
  for (size_t i = 0; i < contents.targets.size(); ++i) {
    const ArchiveTarget& target = contents.targets[i];
    const wire::Section program = sections.add(programs[i]);
    std::vector<Offset<wire::Module>> modules;
    for (const ArchiveModule& module : target.modules) {
      const wire::Section data = sections.add(module.bytes);
      const auto architecture = builder.CreateString(module.architecture), isa = builder.CreateString(module.isa);
      modules.push_back(wire::CreateModule(builder, static_cast<wire::ModuleFormat>(module.format), architecture, isa, &data));
    }
    targets.push_back(wire::CreateTarget(builder, static_cast<wire::Device>(target.program.device), builder.CreateVector(modules), &program));
  }
  std::vector<Offset<wire::Document>> documents;
  for (const ArchiveDocument& document : contents.documents) {
    const wire::Section data = sections.add(bytes_of(document.text));
    documents.push_back(wire::CreateDocument(builder, builder.CreateString(document.name), &data));
  }
  std::vector<Offset<wire::Tensor>> listed;
  for (const auto& [key, tensor] : tensors.tensors) {
    const wire::Section data = sections.add({static_cast<const std::byte*>(tensor.data()), static_cast<size_t>(tensor.bytes())});
    const auto name = builder.CreateString(key);
    const auto dims = builder.CreateVector(tensor.dims());
    listed.push_back(wire::CreateTensor(builder, name, static_cast<wire::DType>(tensor.dtype()), dims, &data));
  }
  const auto writer = builder.CreateString(contents.writer);
  const auto all_targets = builder.CreateVector(targets);
  const auto all_tensors = builder.CreateVector(listed);
  builder.Finish(wire::CreateIndex(builder, writer, 0, all_targets, all_tensors, builder.CreateVector(documents)));
  const std::span<const std::byte> index = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));

  const base::Hash128 index_hash = base::hash_bytes(index.data(), index.size());
  ArchiveHeader header{.version = kArchiveVersion,
                       .file_bytes = sizeof(ArchiveHeader) + padded(index.size()) + sections.size(),
                       .index_bytes = index.size(),
                       .index_hash = {index_hash.low, index_hash.high}};
  std::memcpy(header.magic, kArchiveMagic, sizeof header.magic);
  header.header_hash = base::hash_bytes(&header, offsetof(ArchiveHeader, header_hash)).low;
  sink(std::as_bytes(std::span(&header, 1)));
  hand_out(sink, index);
  for (const std::span<const std::byte> section : sections.all()) hand_out(sink, section);
}

}  // namespace fuseloom::program
