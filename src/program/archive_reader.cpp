// Bytes → contents. Everything is checked before it is used; what is wrong is said in the words of a UserError.
#include <archive_generated.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "program/archive_format.h"

namespace fuseloom::program {

namespace {

using sym::Expr;

// ---- the enumerators of archive.fbs have the numbers of ours ---------------------------------------------------------
template <class Wire, class Ours>
constexpr bool same(Wire wire, Ours ours) {
  return static_cast<int>(wire) == static_cast<int>(ours);
}
static_assert(same(wire::Device::MAX, Device::Cuda) && same(wire::Device::Cpu, Device::Cpu));
static_assert(same(wire::ModuleFormat::MAX, ModuleFormat::Ptx) && same(wire::ModuleFormat::Cubin, ModuleFormat::Cubin));
static_assert(same(wire::DType::MAX, kDTypeCount - 1) && same(wire::DType::Bool, DType::Bool) && same(wire::DType::I8, DType::I8) &&
              same(wire::DType::I16, DType::I16) && same(wire::DType::I32, DType::I32) && same(wire::DType::I64, DType::I64) &&
              same(wire::DType::U8, DType::U8) && same(wire::DType::U16, DType::U16) && same(wire::DType::U32, DType::U32) &&
              same(wire::DType::U64, DType::U64) && same(wire::DType::F16, DType::F16) && same(wire::DType::BF16, DType::BF16) &&
              same(wire::DType::F32, DType::F32) && same(wire::DType::F64, DType::F64) && same(wire::DType::C64, DType::C64) &&
              same(wire::DType::C128, DType::C128));
static_assert(same(wire::BufferKind::Input, BufferKind::Input) && same(wire::BufferKind::Constant, BufferKind::Constant) &&
              same(wire::BufferKind::Prepared, BufferKind::Prepared) && same(wire::BufferKind::Temporary, BufferKind::Temporary) &&
              same(wire::BufferKind::View, BufferKind::View) && same(wire::BufferKind::MAX, BufferKind::View));
static_assert(same(wire::Activation::None, Activation::None) && same(wire::Activation::Relu, Activation::Relu) &&
              same(wire::Activation::GeluTanh, Activation::GeluTanh) && same(wire::Activation::MAX, Activation::GeluTanh));
static_assert(same(wire::ExprKind::Const, sym::Kind::Const) && same(wire::ExprKind::Symbol, sym::Kind::Symbol) &&
              same(wire::ExprKind::Add, sym::Kind::Add) && same(wire::ExprKind::Mul, sym::Kind::Mul) &&
              same(wire::ExprKind::FloorDiv, sym::Kind::FloorDiv) && same(wire::ExprKind::Mod, sym::Kind::Mod) &&
              same(wire::ExprKind::Min, sym::Kind::Min) && same(wire::ExprKind::Max, sym::Kind::Max) &&
              same(wire::ExprKind::Eq, sym::Kind::Eq) && same(wire::ExprKind::Ne, sym::Kind::Ne) && same(wire::ExprKind::Lt, sym::Kind::Lt) &&
              same(wire::ExprKind::Le, sym::Kind::Le) && same(wire::ExprKind::Select, sym::Kind::Select) &&
              same(wire::ExprKind::MAX, sym::Kind::Select));

// Damage is found deep inside; the reader adds the name of the file.
template <class... Args>
[[noreturn]] void damaged(fmt::format_string<Args...> words, Args&&... args) {
  throw UserError(fmt::format(words, std::forward<Args>(args)...));
}

// Programs nest as deeply as the control flow of a model; expressions as deeply as what they were computed from.
constexpr int kDeepestProgram = 200;
constexpr int kDeepestExpr = 1000;

template <class Root>
const Root& root_of(std::span<const std::byte> bytes, std::string_view what) {
  const uint8_t* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  if (bytes.size() >= FLATBUFFERS_MAX_BUFFER_SIZE) damaged("{} has {} bytes, more than its tables can have", what, bytes.size());
  flatbuffers::Verifier::Options options;
  options.max_depth = 4 * kDeepestProgram;
  options.max_tables = 8'000'000;
  flatbuffers::Verifier verifier(data, bytes.size(), options);
  if (!verifier.VerifyBuffer<Root>(nullptr)) damaged("the tables of {} are damaged", what);
  return *flatbuffers::GetRoot<Root>(data);
}

// A vector of tables, structs or numbers; absent: empty.
template <class T>
struct Each {
  const flatbuffers::Vector<T>* vector;
  auto begin() const { return vector == nullptr ? decltype(vector->begin())(nullptr, 0) : vector->begin(); }
  auto end() const { return vector == nullptr ? decltype(vector->end())(nullptr, 0) : vector->end(); }
};
template <class T>
Each<T> each(const flatbuffers::Vector<T>* vector) {
  return {vector};
}
template <class T>
size_t size_of(const flatbuffers::Vector<T>* vector) {
  return vector == nullptr ? 0 : vector->size();
}

std::vector<std::string> texts_of(const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>* vector) {
  std::vector<std::string> texts;
  texts.reserve(size_of(vector));
  for (const flatbuffers::String* text : each(vector)) texts.push_back(text->str());
  return texts;
}

template <class Enum, class Wire>
Enum enum_of(Wire wire, std::string_view what) {
  if (wire < Wire::MIN || wire > Wire::MAX) damaged("{} {} is not known", what, static_cast<int>(wire));
  return static_cast<Enum>(wire);
}
DType dtype_of(wire::DType dtype) { return enum_of<DType>(dtype, "element type"); }

bool is_symbol_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '.'; });
}

// A target's program. `tensor` gives the archive's tensor of a number.
class ProgramParser {
 public:
  using TensorFn = std::function<Tensor(uint32_t number)>;
  ProgramParser(const op::OpTable& table, TensorFn tensor) : table_(table), tensor_(std::move(tensor)) {}

  ArchiveReader::LoadedTarget read(const wire::ProgramFile& file) {
    read_exprs(file);
    ArchiveReader::LoadedTarget target{.program = read(*file.program())};
    for (const wire::Entry* entry : each(file.entries())) {
      std::vector<Dims> dims;
      size_t at = 0;
      for (const op::TensorType& type : target.program.input_types) {
        const size_t rank = static_cast<size_t>(type.rank());
        if (at + rank > size_of(entry->sizes())) damaged("an entry has {} sizes, fewer than the inputs have", size_of(entry->sizes()));
        Dims& sizes = dims.emplace_back();
        for (size_t d = 0; d < rank; ++d) sizes.push_back(entry->sizes()->Get(static_cast<flatbuffers::uoffset_t>(at++)));
      }
      target.entries.push_back(std::move(dims));
    }
    return target;
  }

 private:
  // ---- expressions
  void read_exprs(const wire::ProgramFile& file) {
    const std::vector<std::string> symbols = texts_of(file.symbols());
    for (const std::string& symbol : symbols) {
      if (!is_symbol_name(symbol)) damaged("'{}' is no name of a symbol", symbol);
    }
    std::vector<int> depths;
    for (const wire::ExprNode* node : each(file.exprs())) {
      const size_t number = exprs_.size();
      if (uint64_t{node->first()} + node->count() > size_of(file.args())) damaged("the arguments of expression {} are missing", number);
      std::vector<Expr> args;
      int depth = 0;
      for (uint32_t a = 0; a < node->count(); ++a) {
        const uint32_t arg = file.args()->Get(node->first() + a);
        if (arg >= number) damaged("expression {} is made of expression {}, which comes later", number, arg);
        args.push_back(exprs_[arg]);
        depth = std::max(depth, depths[arg] + 1);
      }
      if (depth > kDeepestExpr) damaged("expression {} nests deeper than {}", number, kDeepestExpr);
      depths.push_back(depth);
      const sym::Kind kind = enum_of<sym::Kind>(node->kind(), "kind of expression");
      if (kind == sym::Kind::Symbol && (node->value() < 0 || node->value() >= static_cast<int64_t>(symbols.size())))
        damaged("expression {} is symbol {} of {}", number, node->value(), symbols.size());
      exprs_.push_back(build(kind, node->value(), args, symbols, number));
    }
  }
  static Expr build(sym::Kind kind, int64_t value, const std::vector<Expr>& args, const std::vector<std::string>& symbols, size_t number) {
    const auto need = [&](bool right) {
      if (!right) damaged("expression {} has {} arguments", number, args.size());
    };
    switch (kind) {
      case sym::Kind::Const: need(args.empty()); return value;
      case sym::Kind::Symbol: need(args.empty()); return Expr::symbol(symbols[static_cast<size_t>(value)]);
      case sym::Kind::Add:
      case sym::Kind::Mul:
      case sym::Kind::Min:
      case sym::Kind::Max: need(!args.empty()); return sym::build(kind, args);
      case sym::Kind::FloorDiv:
      case sym::Kind::Mod:
      case sym::Kind::Eq:
      case sym::Kind::Ne:
      case sym::Kind::Lt:
      case sym::Kind::Le: need(args.size() == 2); return sym::build(kind, args);
      case sym::Kind::Select: need(args.size() == 3); return sym::build(kind, args);
    }
    damaged("expression {} is of no kind", number);
  }
  const Expr& expr(uint32_t number) const {
    if (number >= exprs_.size()) damaged("expression {} of {}", number, exprs_.size());
    return exprs_[number];
  }
  std::vector<Expr> exprs(const flatbuffers::Vector<uint32_t>* numbers) const {
    std::vector<Expr> values;
    values.reserve(size_of(numbers));
    for (const uint32_t number : each(numbers)) values.push_back(expr(number));
    return values;
  }
  op::TensorType type(const wire::Type& type) const { return {dtype_of(type.dtype()), exprs(type.shape())}; }

  // ---- small things
  BufferId id(int32_t number) const {
    if (number < -1 || number >= buffer_count_) damaged("buffer {} of {}", number, buffer_count_);
    return {number};
  }
  std::vector<BufferId> ids(const flatbuffers::Vector<int32_t>* numbers) const {
    std::vector<BufferId> ids;
    ids.reserve(size_of(numbers));
    for (const int32_t number : each(numbers)) ids.push_back(id(number));
    return ids;
  }
  template <class T, class Wire, class Convert>
  static std::array<T, 3> three(const flatbuffers::Vector<Wire>* values, const std::array<T, 3>& absent, Convert convert) {
    if (values == nullptr) return absent;
    if (values->size() != 3) damaged("a variant has {} sizes of three", values->size());
    return {convert(values->Get(0)), convert(values->Get(1)), convert(values->Get(2))};
  }

  // ---- attributes
  op::AttrValue value_of(const wire::Attribute& attribute) const {
    switch (attribute.value_type()) {
      case wire::AttributeValue::IntegerValue: return attribute.value_as_IntegerValue()->value();
      case wire::AttributeValue::RealValue: return attribute.value_as_RealValue()->value();
      case wire::AttributeValue::TextValue: return attribute.value_as_TextValue()->value()->str();
      case wire::AttributeValue::TypeValue: return dtype_of(attribute.value_as_TypeValue()->value());
      case wire::AttributeValue::IntegersValue: {
        const auto values = each(attribute.value_as_IntegersValue()->value());
        return std::vector<int64_t>(values.begin(), values.end());
      }
      case wire::AttributeValue::RealsValue: {
        const auto values = each(attribute.value_as_RealsValue()->value());
        return std::vector<double>(values.begin(), values.end());
      }
      case wire::AttributeValue::SizesValue: return exprs(attribute.value_as_SizesValue()->value());
      case wire::AttributeValue::TensorValue: return tensor_(attribute.value_as_TensorValue()->value());
      case wire::AttributeValue::NONE: break;
    }
    damaged("attribute '{}' has a value of an unknown kind", attribute.name()->str());
  }

  // ---- lines
  Launch read(const wire::Launch& wire) const {
    Launch launch{.buffers = ids(wire.buffers()), .sizes = exprs(wire.sizes()), .work = expr(wire.work()), .bytes = expr(wire.bytes())};
    const auto size = [this](uint32_t number) { return expr(number); };
    const auto number = [](int32_t value) { return value; };
    for (const wire::Variant* variant : each(wire.variants())) {
      const Variant absent;
      launch.variants.push_back({.condition = expr(variant->condition()),
                                 .kernel = variant->kernel(),
                                 .extent = expr(variant->extent()),
                                 .scratch_bytes = expr(variant->scratch_bytes()),
                                 .grid = three(variant->grid(), absent.grid, size),
                                 .block = three(variant->block(), absent.block, number),
                                 .cluster = three(variant->cluster(), absent.cluster, number),
                                 .shared_bytes = expr(variant->shared_bytes()),
                                 .cooperative = variant->cooperative()});
    }
    for (const wire::InPlace* pair : each(wire.in_place())) launch.in_place.emplace_back(id(pair->written()), id(pair->read()));
    if (wire.product() != nullptr) launch.product = read(*wire.product());
    return launch;
  }
  MatrixProduct::Operand read(const wire::Operand& wire) const {
    return {.buffer = wire.buffer(),
            .offset = expr(wire.offset()),
            .batch_stride = expr(wire.batch_stride()),
            .row_stride = expr(wire.row_stride()),
            .column_stride = expr(wire.column_stride())};
  }
  MatrixProduct read(const wire::MatrixProduct& wire) const {
    if (wire.activation() > wire::Activation::MAX) damaged("a matrix product has activation {}", static_cast<int>(wire.activation()));
    return {.rows = expr(wire.rows()),
            .columns = expr(wire.columns()),
            .depth = expr(wire.depth()),
            .batch = expr(wire.batch()),
            .left = read(*wire.left()),
            .right = read(*wire.right()),
            .result = read(*wire.result()),
            .bias = wire.bias(),
            .bias_offset = expr(wire.bias_offset()),
            .activation = enum_of<Activation>(wire.activation(), "activation"),
            .workspace = id(wire.workspace())};
  }
  Call read(const wire::Call& wire) const {
    Call call{.op = table_.find(wire.op()->string_view()),
              .inputs = ids(wire.inputs()),
              .outputs = ids(wire.outputs()),
              .defines = texts_of(wire.defines())};
    if (call.op == nullptr)
      damaged("op '{}' is not known here: it is of a later version, or of a table of ops that was not given", wire.op()->str());
    for (const wire::Attribute* attribute : each(wire.attributes())) call.attrs.set(attribute->name()->str(), value_of(*attribute));
    return call;
  }
  Copy read(const wire::Copy& wire) const { return {.from = id(wire.from()), .to = id(wire.to())}; }
  ReadSymbols read(const wire::ReadSymbols& wire) const { return {.from = id(wire.from()), .defines = texts_of(wire.defines())}; }
  Assert read(const wire::Assert& wire) const { return {.condition = expr(wire.condition()), .message = wire.message()->str()}; }
  If read(const wire::If& wire) {
    return {.condition = id(wire.condition()),
            .then = nested(*wire.then()),
            .otherwise = nested(*wire.otherwise()),
            .inputs = ids(wire.inputs()),
            .outputs = ids(wire.outputs()),
            .defines = texts_of(wire.defines())};
  }
  While read(const wire::While& wire) {
    return {.body = nested(*wire.body()),
            .trip_count = id(wire.trip_count()),
            .condition = id(wire.condition()),
            .inputs = ids(wire.inputs()),
            .carried = wire.carried(),
            .scans = wire.scans(),
            .outputs = ids(wire.outputs()),
            .defines = texts_of(wire.defines())};
  }
  std::unique_ptr<Program> nested(const wire::Program& wire) {
    if (++depth_ > kDeepestProgram) damaged("programs nest deeper than {}", kDeepestProgram);
    const int32_t outer = buffer_count_;
    std::unique_ptr<Program> program = std::make_unique<Program>(read(wire));
    buffer_count_ = outer;
    --depth_;
    return program;
  }
  Line read(const wire::Line& wire) {
    Line line{.nodes = {}, .origin = wire.origin()->str()};
    const auto nodes = each(wire.nodes());
    line.nodes.assign(nodes.begin(), nodes.end());
    switch (wire.what_type()) {
      case wire::LineKind::Launch: line.what = read(*wire.what_as_Launch()); return line;
      case wire::LineKind::Call: line.what = read(*wire.what_as_Call()); return line;
      case wire::LineKind::Copy: line.what = read(*wire.what_as_Copy()); return line;
      case wire::LineKind::ReadSymbols: line.what = read(*wire.what_as_ReadSymbols()); return line;
      case wire::LineKind::Assert: line.what = read(*wire.what_as_Assert()); return line;
      case wire::LineKind::If: line.what = read(*wire.what_as_If()); return line;
      case wire::LineKind::While: line.what = read(*wire.what_as_While()); return line;
      case wire::LineKind::NONE: break;
    }
    damaged("a line is of an unknown kind");
  }
  std::vector<Line> lines(const flatbuffers::Vector<flatbuffers::Offset<wire::Line>>* wire) {
    std::vector<Line> lines;
    lines.reserve(size_of(wire));
    for (const wire::Line* line : each(wire)) lines.push_back(read(*line));
    return lines;
  }

  // ---- programs
  Program read(const wire::Program& wire) {
    Program program{.name = wire.name()->str(),
                    .device = enum_of<Device>(wire.device(), "device"),
                    .input_names = texts_of(wire.input_names()),
                    .outer_symbols = texts_of(wire.outer_symbols())};
    for (const wire::Type* each_type : each(wire.input_types())) program.input_types.push_back(type(*each_type));
    if (program.input_types.size() != program.input_names.size())
      damaged("{} inputs have {} names", program.input_types.size(), program.input_names.size());
    for (const wire::SymbolRange* range : each(wire.ranges()))
      program.facts.symbols[range->symbol()->str()] = {.low = range->low(), .high = range->high(), .divisor = range->divisor()};
    program.facts.nonzero = exprs(wire.nonzero());
    for (const wire::SymbolBelow* below : each(wire.below())) program.facts.upper_exclusive[below->symbol()->str()] = expr(below->bound());
    buffer_count_ = static_cast<int32_t>(size_of(wire.buffers()));
    program.buffers.reserve(size_of(wire.buffers()));
    for (const wire::Buffer* buffer : each(wire.buffers())) {
      program.buffers.push_back({.name = buffer->name()->str(),
                                 .kind = enum_of<BufferKind>(buffer->kind(), "kind of buffer"),
                                 .type = type(*buffer->type()),
                                 .index = buffer->index(),
                                 .base = id(buffer->base()),
                                 .offset = expr(buffer->offset())});
    }
    for (const uint32_t number : each(wire.constants())) program.constants.push_back(tensor_(number));
    for (std::string& name : texts_of(wire.kernels())) program.kernels.push_back({std::move(name)});
    program.init = lines(wire.init());
    program.lines = lines(wire.lines());
    for (const wire::Output* wire_output : each(wire.outputs())) {
      Output& output = program.outputs.emplace_back(Output{.name = wire_output->name()->str(),
                                                           .buffer = id(wire_output->buffer()),
                                                           .type = type(*wire_output->type()),
                                                           .offset = expr(wire_output->offset())});
      if (wire_output->strides() != nullptr) output.strides = exprs(wire_output->strides());
    }
    const auto order = each(wire.placement_order());
    program.placement_order.assign(order.begin(), order.end());
    return program;
  }

  const op::OpTable& table_;
  const TensorFn tensor_;
  std::vector<Expr> exprs_;
  int32_t buffer_count_ = 0;  // of the program that is being read
  int depth_ = 0;
};

}  // namespace

struct ArchiveReader::Impl {
  Impl(std::span<const std::byte> file, std::shared_ptr<void> keeper, std::string name)
      : bytes(file), owner(std::move(keeper)), where(std::move(name)) {}

  // Runs a part of the reading; what it finds wrong gets the name of the file. A program that breaks an invariant, or an
  // expression that cannot be, is damage of the file here, not a bug.
  template <class Body>
  auto reading(Body body) const {
    try {
      return body();
    } catch (const UserError& error) {
      throw UserError(fmt::format("{}: {}", where, error.what()));
    } catch (const InternalError& error) {
      throw UserError(fmt::format("{}: its program is damaged: {}", where, error.what()));
    }
  }

  void read_header() {
    ArchiveHeader header;
    if (bytes.size() < sizeof header) damaged("is no .floom archive: it has {} bytes, a header has {}", bytes.size(), sizeof header);
    std::memcpy(&header, bytes.data(), sizeof header);
    if (std::memcmp(header.magic, kArchiveMagic, sizeof header.magic) != 0) damaged("is no .floom archive: it starts differently");
    // The version stands before everything that may change with it, the hash included.
    if (header.version != kArchiveVersion)
      damaged("is an archive of version {}, this fuseloom reads version {}; compile the model again", header.version, kArchiveVersion);
    if (header.header_hash != base::hash_bytes(&header, offsetof(ArchiveHeader, header_hash)).low || header.zero != 0 || header.reserved != 0)
      damaged("the header is damaged");
    if (header.file_bytes != bytes.size())
      damaged("has {} bytes, but was written with {}: it {}", bytes.size(), header.file_bytes,
              bytes.size() < header.file_bytes ? "was cut short" : "has something behind its end");
    if (header.index_bytes > bytes.size() - sizeof header || padded(header.index_bytes) > bytes.size() - sizeof header)
      damaged("the index reaches beyond the end");
    const std::span<const std::byte> text = bytes.subspan(sizeof header, header.index_bytes);
    const base::Hash128 hash = base::hash_bytes(text.data(), text.size());
    if (hash.low != header.index_hash[0] || hash.high != header.index_hash[1]) damaged("the index is damaged");
    sections = bytes.subspan(sizeof header + padded(header.index_bytes));
    check_zeros(text.data() + text.size(), sections.data(), "the index");
    index = &root_of<wire::Index>(text, "the index");
  }

  void read_index() {
    for (const flatbuffers::String* feature : each(index->needs()))
      damaged("needs the feature '{}', which this fuseloom does not have; a later version does", feature->str());
    for (const wire::Target* target : each(index->targets())) {
      TargetInfo& info = targets.emplace_back(TargetInfo{.device = enum_of<Device>(target->device(), "device")});
      for (const wire::Module* module : each(target->modules())) {
        info.modules.push_back({.format = enum_of<ModuleFormat>(module->format(), "module format"),
                                .architecture = module->architecture()->str(),
                                .isa = module->isa()->str(),
                                .bytes = static_cast<int64_t>(bounds(*module->data(), "a module").size())});
      }
    }
    for (const wire::Tensor* tensor : each(index->tensors())) tensor_bytes += static_cast<int64_t>(bounds(*tensor->data(), "a tensor").size());
  }

  static void check_zeros(const std::byte* begin, const std::byte* end, std::string_view what) {
    if (std::any_of(begin, end, [](std::byte byte) { return byte != std::byte{}; })) damaged("the padding behind {} is damaged", what);
  }
  std::span<const std::byte> bounds(const wire::Section& section, std::string_view what) const {
    if (section.offset() % kArchiveAlignment != 0 || section.offset() > sections.size() || section.size() > sections.size() - section.offset() ||
        padded(section.size()) > sections.size() - section.offset())
      damaged("{} at {} with {} bytes reaches beyond the end", what, section.offset(), section.size());
    return sections.subspan(section.offset(), section.size());
  }
  std::span<const std::byte> checked(const wire::Section& section, std::string_view what) const {
    const std::span<const std::byte> found = bounds(section, what);
    const base::Hash128 hash = base::hash_bytes(found.data(), found.size());
    if (hash.low != section.hash().low() || hash.high != section.hash().high()) damaged("{} is damaged: its content hash differs", what);
    check_zeros(found.data() + found.size(), found.data() + padded(found.size()), what);
    return found;
  }

  Tensor tensor(uint32_t number, bool check) const {
    if (number >= size_of(index->tensors())) damaged("tensor {} of {}", number, size_of(index->tensors()));
    const wire::Tensor& wire = *index->tensors()->Get(number);
    const std::string what = fmt::format("tensor {}", number);
    const std::span<const std::byte> data = check ? checked(*wire.data(), what) : bounds(*wire.data(), what);
    const auto sizes = each(wire.dims());
    const Dims dims(sizes.begin(), sizes.end());
    const DType dtype = dtype_of(wire.dtype());
    const int64_t count = element_count(dims);
    if (count > static_cast<int64_t>(data.size()) || dtype_bytes(dtype, count) != static_cast<int64_t>(data.size()))
      damaged("{} has {} bytes, too few or too many for {} elements of {}", what, data.size(), count, dtype_name(dtype));
    // Programs do not write to their constants.
    return Tensor::share(dtype, dims, contiguous_strides(dims), const_cast<std::byte*>(data.data()), owner);
  }
  const wire::Target& target(size_t number) const {
    FL_CHECK(number < targets.size(), "target {} of {}", number, targets.size());
    return *index->targets()->Get(static_cast<flatbuffers::uoffset_t>(number));
  }

  const std::span<const std::byte> bytes;
  const std::shared_ptr<void> owner;
  const std::string where;
  std::span<const std::byte> sections;
  const wire::Index* index = nullptr;
  std::vector<TargetInfo> targets;
  int64_t tensor_bytes = 0;
};

ArchiveReader::ArchiveReader(std::span<const std::byte> bytes, std::shared_ptr<void> owner, std::string where)
    : impl_(std::make_unique<Impl>(bytes, std::move(owner), std::move(where))) {
  FL_CHECK(reinterpret_cast<uintptr_t>(bytes.data()) % kArchiveAlignment == 0, "{}: the archive's memory is not aligned", impl_->where);
  impl_->reading([&] {
    impl_->read_header();
    impl_->read_index();
  });
}
ArchiveReader::~ArchiveReader() = default;
ArchiveReader::ArchiveReader(ArchiveReader&&) noexcept = default;

const std::string& ArchiveReader::where() const { return impl_->where; }
std::string ArchiveReader::writer() const { return impl_->index->writer()->str(); }
const std::vector<ArchiveReader::TargetInfo>& ArchiveReader::targets() const { return impl_->targets; }
int64_t ArchiveReader::tensor_bytes() const { return impl_->tensor_bytes; }

std::vector<std::string> ArchiveReader::documents() const {
  std::vector<std::string> names;
  for (const wire::Document* document : each(impl_->index->documents())) names.push_back(document->name()->str());
  return names;
}

ArchiveReader::LoadedTarget ArchiveReader::target(size_t index, const op::OpTable& table, bool check_tensors) const {
  return impl_->reading([&] {
    const std::span<const std::byte> bytes = impl_->checked(*impl_->target(index).program(), "the program");
    ProgramParser parser(table, [&](uint32_t number) { return impl_->tensor(number, check_tensors); });
    LoadedTarget target = parser.read(root_of<wire::ProgramFile>(bytes, "the program"));
    verify(target.program);
    if (target.program.device != impl_->targets[index].device)
      damaged("the program is for {}, its target for {}", device_name(target.program.device), device_name(impl_->targets[index].device));
    return target;
  });
}

std::span<const std::byte> ArchiveReader::module(size_t target, size_t module) const {
  return impl_->reading([&] {
    const wire::Target& wire = impl_->target(target);
    FL_CHECK(module < size_of(wire.modules()), "module {} of {}", module, size_of(wire.modules()));
    return impl_->checked(*wire.modules()->Get(static_cast<flatbuffers::uoffset_t>(module))->data(), "the machine code");
  });
}

std::optional<std::string> ArchiveReader::document(std::string_view name) const {
  return impl_->reading([&]() -> std::optional<std::string> {
    for (const wire::Document* document : each(impl_->index->documents())) {
      if (document->name()->string_view() != name) continue;
      const std::span<const std::byte> text = impl_->checked(*document->data(), fmt::format("the document '{}'", name));
      return std::string(reinterpret_cast<const char*>(text.data()), text.size());
    }
    return std::nullopt;
  });
}

op::ConstantPool ArchiveReader::pool() const {
  return impl_->reading([&] {
    op::ConstantPool pool;
    for (uint32_t number = 0; number < size_of(impl_->index->tensors()); ++number)
      pool.emplace(impl_->index->tensors()->Get(number)->key()->str(), impl_->tensor(number, true));
    return pool;
  });
}

void ArchiveReader::check_everything() const {
  impl_->reading([&] {
    for (size_t t = 0; t < impl_->targets.size(); ++t) {
      const wire::Target& target = impl_->target(t);
      impl_->checked(*target.program(), "the program");
      for (const wire::Module* module : each(target.modules())) impl_->checked(*module->data(), "the machine code");
    }
    for (const wire::Document* document : each(impl_->index->documents())) impl_->checked(*document->data(), "a document");
    for (const wire::Tensor* tensor : each(impl_->index->tensors())) impl_->checked(*tensor->data(), "a tensor");
  });
}

}  // namespace fuseloom::program
