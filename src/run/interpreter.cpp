#include "run/interpreter.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "op/element.h"
#include "op/stream.h"

namespace fuseloom::run {

using program::BufferId;
using program::BufferKind;

namespace {

std::string dims_text(std::span<const int64_t> dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

void poison(void* data, int64_t bytes) {
  if (bytes > 0) std::memset(data, kPoison, static_cast<size_t>(bytes));
}

bool same_dims(const Dims& dims, const int64_t* expected) { return std::equal(dims.begin(), dims.end(), expected); }

template <class Float>
int64_t first_not_finite(const Tensor& tensor, int64_t count) {
  const Float* const values = tensor.as<Float>();
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) return i;
  }
  return -1;
}

// Of a contiguous tensor: the index of the first value that is NaN or infinite, or -1. For complex values, of parts.
int64_t first_not_finite(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DType::F16:
    case DType::BF16: {
      const uint16_t exponent = tensor.dtype() == DType::F16 ? 0x7C00 : 0x7F80;
      const uint16_t* const bits = tensor.as<uint16_t>();
      for (int64_t i = 0, count = tensor.count(); i < count; ++i) {
        if ((bits[i] & exponent) == exponent) return i;
      }
      return -1;
    }
    case DType::F32: return first_not_finite<float>(tensor, tensor.count());
    case DType::F64: return first_not_finite<double>(tensor, tensor.count());
    case DType::C64: return first_not_finite<float>(tensor, 2 * tensor.count());
    case DType::C128: return first_not_finite<double>(tensor, 2 * tensor.count());
    case DType::Bool:
    case DType::I8:
    case DType::I16:
    case DType::I32:
    case DType::I64:
    case DType::U8:
    case DType::U16:
    case DType::U32:
    case DType::U64: return -1;
  }
  return -1;
}

void copy_elements(const Tensor& from, Tensor& to) {
  if (from.count() == 0) return;
  if (from.contiguous() && to.contiguous()) {
    std::memmove(to.data(), from.data(), static_cast<size_t>(from.bytes()));
  } else {
    op::copy_strided(from.dtype(), to.data(), to.strides(), from.data(), from.strides(), from.dims());
  }
}

}  // namespace

// ---- finding the entry and the memory --------------------------------------------------------------------------------

std::shared_ptr<const Entry> LoadedProgram::find_entry(std::span<const Tensor> inputs, std::span<const int64_t> outer, Context& context) const {
  const auto matches = [&](const Entry& entry) {
    const int64_t* at = entry.key.data();
    if (!std::equal(outer.begin(), outer.end(), at)) return false;
    at += outer.size();
    for (const Tensor& input : inputs) {
      if (!same_dims(input.dims(), at)) return false;
      at += input.rank();
    }
    return true;
  };
  // Ranks have been checked: the sizes of all inputs fill the key exactly.
  if (context.last != nullptr && matches(*context.last)) return context.last;
  std::vector<int64_t> key(outer.begin(), outer.end());
  for (const Tensor& input : inputs) key.insert(key.end(), input.dims().begin(), input.dims().end());
  std::shared_ptr<const Entry> entry = entry_of_key(std::move(key));
  if (options_.max_entries > 0) context.last = entry;
  return entry;
}

void LoadedProgram::check_inputs(std::span<const Tensor> inputs) const {
  FL_REQUIRE(inputs.size() == program_.input_types.size(), "program {} takes {} inputs ({}), {} are given", program_.name, program_.input_types.size(),
             fmt::join(program_.input_names, ", "), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const op::TensorType& type = program_.input_types[i];
    // The rank is always looked at: the lookup by sizes relies on it.
    FL_REQUIRE(inputs[i].dims().size() == type.shape.size(), "input '{}': expected rank {} ({}), got {}", program_.input_names[i], type.rank(),
               op::to_string(type), inputs[i].valid() ? inputs[i].type_string() : "no tensor");
    if (!options_.check_inputs) continue;
    FL_REQUIRE(inputs[i].valid(), "input '{}': expected {}, no tensor is given", program_.input_names[i], op::to_string(type));
    FL_REQUIRE(inputs[i].dtype() == type.dtype, "input '{}': expected {}, got {}", program_.input_names[i], op::to_string(type), inputs[i].type_string());
  }
}

std::unique_ptr<Context> LoadedProgram::take_context() const {
  std::unique_ptr<Context> context = contexts_.take();
  if (context != nullptr) return context;
  context = std::make_unique<Context>();
  context->slots = fixed_slots_;
  context->pointers.resize(static_cast<size_t>(most_arguments_));
  context->symbols.resize(symbols_.size());
  context->values.resize(static_cast<size_t>(dynamic_values_));
  context->evaluator_scratch.resize(static_cast<size_t>(evaluator_scratch_));
  context->copies.resize(program_.input_types.size());
  context->adopted.resize(storages_.size());
  context->taken.resize(storages_.size());
  context->direct.resize(outputs_.size());
  return context;
}

void LoadedProgram::run(std::span<const Tensor> inputs, std::span<Tensor> results, const RunMode& mode) const {
  check_inputs(inputs);
  // The context goes back when the run is over, however it ends.
  struct Borrowed {
    const LoadedProgram& loaded;
    std::unique_ptr<Context> context;
    ~Borrowed() {
      context->end_run();
      loaded.contexts_.give_back(std::move(context));
    }
  } borrowed{*this, take_context()};
  const std::shared_ptr<const Entry> entry = find_entry(inputs, mode.outer, *borrowed.context);
  Run(*this, *entry, *borrowed.context, inputs, results, mode).execute();
}

// ---- one run ---------------------------------------------------------------------------------------------------------

void Run::execute() {
  std::copy(entry_.symbols.begin(), entry_.symbols.end(), context_.symbols.begin());
  next_symbol_ = static_cast<int32_t>(entry_.symbols.size());
  context_.slots[0] = context_.arena.reserve(entry_.arena_bytes);
  if (loaded_.options_.poison) poison(context_.slots[0], entry_.arena_bytes);
  bind_inputs();
  bind_results();
  const bool instruments = mode_.profile || mode_.hook != nullptr || loaded_.options_.poison;
  size_t line = 0;
  try {
    if (!instruments) {
      for (; line < loaded_.steps_.size(); ++line) run_step(line);
    } else {
      for (; line < loaded_.steps_.size(); ++line) run_step_with_instruments(line);
    }
  } catch (const UserError& error) {
    // An Assert has its own words; of nested programs, the innermost line is named.
    const std::string_view words = error.what();
    const std::string& origin = program_.lines[line].origin;
    if (loaded_.steps_[line].kind == Step::Kind::Assert || origin.empty() || words.find(" [in ") != std::string_view::npos) throw;
    throw UserError(fmt::format("{} [in {}]", words, origin));
  }
  finish_results();
}

void Run::bind_inputs() {
  const int64_t* strides = entry_.strides.data();
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Tensor& input = inputs_[i];
    // The usual strides are recognised at once; others may still be contiguous (empty tensors, sizes of 1).
    if (!same_dims(input.strides(), strides) && !input.contiguous()) {
      context_.copies[i] = input.contiguous_copy();
      context_.used = true;
    }
    strides += input.rank();
    if (loaded_.options_.check_finite) {
      const Tensor& checked = context_.copies[i].valid() ? context_.copies[i] : input;
      const int64_t index = first_not_finite(checked);
      FL_REQUIRE(index < 0, "input '{}': element {} is {}, expected finite values", program_.input_names[i], is_complex(input.dtype()) ? index / 2 : index,
                 checked.at(is_complex(input.dtype()) ? index / 2 : index));
    }
  }
  for (const auto& [slot, input] : loaded_.input_slots_) {
    const Tensor& copy = context_.copies[static_cast<size_t>(input)];
    const Tensor& bound = copy.valid() ? copy : inputs_[static_cast<size_t>(input)];
    context_.slots[static_cast<size_t>(slot)] = const_cast<void*>(bound.data());  // kernels do not write to inputs
  }
}

// ---- results

bool Run::shares_input(const OutputPlan& plan) const {
  if (plan.source != BufferKind::Input || mode_.sharing == Sharing::Never) return false;
  return plan.has_strides || mode_.sharing == Sharing::Anything;
}

bool Run::overlaps_input(const Tensor& tensor) const {
  const char* const begin = static_cast<const char*>(tensor.data());
  const char* const end = begin + tensor.bytes();
  for (const Storage& storage : loaded_.storages_) {
    if (storage.place != Storage::Place::Input) continue;
    const char* const input = static_cast<const char*>(context_.slots[static_cast<size_t>(storage.slot)]);
    const int64_t bytes = entry_.storage_bytes[static_cast<size_t>(&storage - loaded_.storages_.data())];
    if (begin < input + bytes && input < end) return true;
  }
  return false;
}

// Checks a tensor that the caller gave for a result.
void Run::accept_result(size_t i) {
  Tensor& given = results_[i];
  const OutputPlan& plan = loaded_.outputs_[i];
  const program::Output& output = program_.outputs[i];
  // What an offer would not spare a copy is not worth taking; sizes that the run decides may not fit it.
  if (mode_.offers && (plan.dims.stage > 0 || shares_input(plan))) {
    given = Tensor();
    return;
  }
  const bool fits = given.dtype() == output.type.dtype && given.rank() == output.type.rank() &&
                    (plan.dims.stage > 0 || same_dims(given.dims(), values(plan.dims))) && given.contiguous();
  if (!fits && mode_.offers) {
    given = Tensor();
    return;
  }
  if (!fits) {
    const std::string expected = plan.dims.stage > 0 ? op::to_string(output.type)
                                                     : std::string(dtype_name(output.type.dtype)) + dims_text({values(plan.dims), output.type.shape.size()});
    throw UserError(fmt::format("output '{}': expected a contiguous {}, got {}{}", output.name, expected, given.type_string(),
                                given.contiguous() ? "" : " that is not contiguous"));
  }
  const char* const begin = static_cast<const char*>(given.data());
  for (size_t other = 0; other < i; ++other) {
    const char* const at = static_cast<const char*>(results_[other].data());
    const bool apart = !results_[other].valid() || begin >= at + results_[other].bytes() || at >= begin + given.bytes();
    FL_REQUIRE(apart, "output '{}' is to be written over output '{}'", output.name, program_.outputs[other].name);
  }
  if (overlaps_input(given)) {
    overlap_ = true;
    context_.direct[i] = 0;
  } else if (loaded_.options_.poison) {
    poison(given.data(), given.bytes());
  }
}

void Run::make_result(size_t i, const int64_t* dims) {
  const op::TensorType& type = program_.outputs[i].type;
  Dims sizes(dims, dims + type.rank());
  Dims strides = contiguous_strides(sizes);
  const int64_t bytes = dtype_bytes(type.dtype, element_count(sizes));
  std::shared_ptr<void> memory = allocate_shared(bytes);
  if (loaded_.options_.poison) poison(memory.get(), bytes);
  void* const data = memory.get();
  results_[i] = Tensor::share(type.dtype, std::move(sizes), std::move(strides), data, std::move(memory));
}

void Run::bind_results() {
  for (size_t i = 0; i < results_.size(); ++i) {
    const OutputPlan& plan = loaded_.outputs_[i];
    context_.direct[i] = plan.direct >= 0 ? 1 : 0;
    if (results_[i].valid()) accept_result(i);
    if (plan.direct < 0) continue;
    const Storage& storage = loaded_.storages_[static_cast<size_t>(plan.direct)];
    if (storage.place != Storage::Place::Result) continue;
    if (!results_[i].valid()) make_result(i, values(plan.dims));
    if (context_.direct[i] != 0) {
      context_.slots[static_cast<size_t>(storage.slot)] = results_[i].data();
    } else {
      context_.slots[static_cast<size_t>(storage.slot)] = context_.blocks.take(entry_.storage_bytes[static_cast<size_t>(plan.direct)]);
      context_.used = true;
    }
  }
}

// The value of a result that was not computed in place, wherever it lies.
Tensor Run::source_of(size_t i) const {
  const OutputPlan& plan = loaded_.outputs_[i];
  const program::Output& output = program_.outputs[i];
  const int64_t* const sizes = values(plan.dims);
  Dims dims(sizes, sizes + output.type.rank());
  Dims strides = plan.has_strides ? Dims(values(plan.strides), values(plan.strides) + output.type.rank()) : contiguous_strides(dims);
  std::shared_ptr<void> owner;
  if (plan.source == BufferKind::Input) {
    const Tensor& copy = context_.copies[static_cast<size_t>(plan.input)];
    owner = copy.valid() ? copy.owner() : inputs_[static_cast<size_t>(plan.input)].owner();
  }
  return Tensor::share(output.type.dtype, std::move(dims), std::move(strides), pointer(output.buffer) + *values(plan.offset), std::move(owner));
}

void Run::finish_results() {
  // When a given result lies over an input, what comes from inputs is read before anything is written.
  std::vector<Tensor> staged;
  if (overlap_) {
    staged.resize(results_.size());
    for (size_t i = 0; i < results_.size(); ++i) {
      if (loaded_.outputs_[i].source == BufferKind::Input) staged[i] = source_of(i).contiguous_copy();
    }
  }
  for (size_t i = 0; i < results_.size(); ++i) {
    if (context_.direct[i] != 0) continue;
    const OutputPlan& plan = loaded_.outputs_[i];
    const Tensor source = overlap_ && staged[i].valid() ? staged[i] : source_of(i);
    if (!results_[i].valid()) {
      if (shares_input(plan)) {
        results_[i] = source;
        continue;
      }
      make_result(i, source.dims().data());
    }
    FL_REQUIRE(results_[i].dims() == source.dims(), "output '{}': the result is {}, the given tensor {}", program_.outputs[i].name, source.type_string(),
               results_[i].type_string());
    copy_elements(source, results_[i]);
  }
}

// ---- lines

void Run::run_step(size_t line) {
  const Step& step = loaded_.steps_[line];
  if (!step.plain) before(step);
  switch (step.kind) {
    case Step::Kind::Launch: launch(step); break;
    case Step::Kind::Call: call(step, std::get<program::Call>(program_.lines[line].what)); break;
    case Step::Kind::Copy: copy(std::get<program::Copy>(program_.lines[line].what)); break;
    case Step::Kind::Read: read(std::get<program::ReadSymbols>(program_.lines[line].what)); break;
    case Step::Kind::Assert: check(step, std::get<program::Assert>(program_.lines[line].what)); break;
    case Step::Kind::If: branch(step, std::get<program::If>(program_.lines[line].what)); break;
    case Step::Kind::While: loop(step, std::get<program::While>(program_.lines[line].what)); break;
  }
  if (!step.plain) after(step);
}

void Run::run_step_with_instruments(size_t line) {
  const Step& step = loaded_.steps_[line];
  if (loaded_.options_.poison) {
    for (const int32_t storage : step.arena_births) poison_storage(storage);
  }
  const double start = mode_.profile ? seconds_now() : 0;
  // What dies here is given back after the hook has seen it.
  if (!step.plain) before(step);
  int64_t bytes = 0;
  const program::Line& what = program_.lines[line];
  switch (step.kind) {
    case Step::Kind::Launch: bytes = launch(step); break;
    case Step::Kind::Call: call(step, std::get<program::Call>(what.what)); break;
    case Step::Kind::Copy: {
      const program::Copy& copied = std::get<program::Copy>(what.what);
      copy(copied);
      bytes = 2 * tensor(copied.from).bytes();
      break;
    }
    case Step::Kind::Read: read(std::get<program::ReadSymbols>(what.what)); break;
    case Step::Kind::Assert: check(step, std::get<program::Assert>(what.what)); break;
    case Step::Kind::If: branch(step, std::get<program::If>(what.what)); break;
    case Step::Kind::While: loop(step, std::get<program::While>(what.what)); break;
  }
  if (mode_.profile) loaded_.profiler_.add(line, start, seconds_now(), bytes);
  if (mode_.hook != nullptr) {
    std::vector<Tensor> written;
    for (const BufferId id : step.written) written.push_back(tensor(id));
    (*mode_.hook)(program_, line, step.written, written);
  }
  if (loaded_.options_.poison) {
    for (const int32_t storage : step.arena_deaths) poison_storage(storage);
    for (const int32_t storage : step.deaths) poison_storage(storage);
  }
  if (!step.plain) after(step);
}

void Run::before(const Step& step) {
  for (const int32_t storage : step.births) take_storage(storage);
  for (const BufferId id : step.views) context_.slots[static_cast<size_t>(loaded_.plan_of(id).view_slot)] = pointer(id);
}

void Run::after(const Step& step) {
  for (const int32_t storage : step.deaths) {
    const size_t at = static_cast<size_t>(storage);
    if (context_.taken[at] != nullptr) context_.blocks.give_back(context_.taken[at]);
    context_.taken[at] = nullptr;
    context_.adopted[at] = Tensor();
  }
}

int64_t Run::launch(const Step& step) {
  const PackedLaunch* packed = &entry_.launches[static_cast<size_t>(step.index)];
  PackedLaunch sized;
  if (packed->sizes == nullptr) {
    const LaunchPlan& plan = loaded_.launches_[static_cast<size_t>(step.index)];
    sized = *packed;
    pack_launch(sized, plan, values(plan.values), loaded_.threads_);
    packed = &sized;
  }
  if (packed->extent <= 0) return packed->bytes;
  void** const pointers = context_.pointers.data();
  for (int32_t i = 0; i < packed->argument_count; ++i) {
    const Argument& argument = packed->arguments[i];
    pointers[i] = static_cast<char*>(context_.slots[static_cast<size_t>(argument.slot)]) + argument.offset;
  }
  const bool poisoned = loaded_.options_.poison && packed->scratch_bytes > 0;
  if (packed->grain == 0) {
    char* const scratch = reinterpret_cast<char*>(context_.scratch.reserve(packed->scratch_bytes));
    if (poisoned) poison(scratch, packed->scratch_bytes);
    packed->function(pointers, packed->sizes, scratch, 0, packed->extent);
    return packed->bytes;
  }
  char* const scratch = reinterpret_cast<char*>(context_.scratch.reserve(std::max(entry_.scratch_bytes, packed->scratch_bytes * loaded_.threads_)));
  const auto body = [&](int32_t worker, int64_t begin, int64_t end) {
    char* const own = scratch + packed->scratch_bytes * worker;
    if (poisoned) poison(own, packed->scratch_bytes);
    packed->function(pointers, packed->sizes, own, begin, end);
  };
  loaded_.pool_->parallel_for(packed->extent, packed->grain, std::ref(body), loaded_.threads_);
  return packed->bytes;
}

void Run::call(const Step& step, const program::Call& call) {
  std::vector<Tensor> inputs, outputs;
  std::vector<op::TensorType> types;
  std::vector<char> present;
  for (const BufferId id : call.inputs) {
    inputs.push_back(optional_tensor(id));
    types.push_back({inputs.back().dtype(), op::shape_of(inputs.back().dims())});
    present.push_back(id.valid() ? 1 : 0);
  }
  op::Attrs evaluated;
  const bool dynamic_attrs = loaded_.calls_[static_cast<size_t>(step.index)].stage > 0;
  if (dynamic_attrs) {
    std::map<std::string, int64_t> symbols;
    for (int32_t i = 0; i < next_symbol_; ++i) symbols[loaded_.symbols_[static_cast<size_t>(i)]] = context_.symbols[static_cast<size_t>(i)];
    evaluated = op::concrete(call.attrs, symbols);
  }
  const op::Attrs& attrs = dynamic_attrs ? evaluated : entry_.call_attrs[static_cast<size_t>(step.index)];
  const std::vector<op::TensorType> results = op::infer_types(*call.op, types, present, attrs, static_cast<int64_t>(call.outputs.size()));
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const BufferId id = call.outputs[i];
    const bool concrete = std::all_of(results[i].shape.begin(), results[i].shape.end(), [](const sym::Expr& size) { return size.is_const(); });
    if (id.valid() && known(loaded_.plan_of(id).dims)) {
      outputs.push_back(tensor(id));
      FL_CHECK(!concrete || results[i].shape == op::shape_of(outputs.back().dims()), "call {}: result {} is {}, its buffer %{} has {}", call.op->name, i,
               op::to_string(results[i]), buffer(id).name, outputs.back().type_string());
    } else if (concrete && !id.valid()) {
      Dims sizes;
      for (const sym::Expr& size : results[i].shape) sizes.push_back(*size.as_const());
      outputs.emplace_back(results[i].dtype, std::move(sizes));
    } else {
      outputs.emplace_back();
    }
  }
  call.op->reference({.record = call.op, .inputs = inputs, .attrs = attrs, .outputs = outputs});
  finish_line(step, call.defines, call.outputs, outputs);
}

void Run::finish_line(const Step& step, const std::vector<std::string>& defines, const std::vector<BufferId>& buffers, std::span<Tensor> results) {
  const int32_t stage_before = stage_;
  define_from(defines, buffers, results);
  if (step.opens > 0) open_stage(step.opens);
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].valid()) deliver(buffers[i], std::move(results[i]), loaded_.plan_of(buffers[i]).dims.stage <= stage_before);
  }
}

void Run::copy(const program::Copy& copy) {
  const BufferPlan& plan = loaded_.plan_of(copy.from);
  const int64_t* const sizes = values(plan.dims);
  int64_t bytes = plan.element_bytes;
  for (int32_t d = 0; d < plan.rank; ++d) bytes *= sizes[d];
  if (bytes > 0) std::memmove(pointer(copy.to), pointer(copy.from), static_cast<size_t>(bytes));
}

void Run::read(const program::ReadSymbols& read) {
  const std::byte* const data = pointer(read.from);
  const BufferPlan& plan = loaded_.plan_of(read.from);
  int64_t count = 1;
  for (int32_t d = 0; d < plan.rank; ++d) count *= values(plan.dims)[d];
  FL_REQUIRE(count == static_cast<int64_t>(read.defines.size()), "%{} has {} elements, expected {} for {}", buffer(read.from).name, count,
             read.defines.size(), fmt::join(read.defines, ", "));
  for (size_t i = 0; i < read.defines.size(); ++i) {
    const int64_t value = op::with_storage(buffer(read.from).type.dtype, [&]<class Element>() -> int64_t {
      return op::store<int64_t>(op::load(reinterpret_cast<const Element*>(data)[i]));
    });
    set_symbol(read.defines[i], value, buffer(read.from).name);
  }
  open_stage(stage_ + 1);
}

void Run::check(const Step& step, const program::Assert& check) const {
  if (*values(loaded_.assert_values_[static_cast<size_t>(step.index)]) != 0) return;
  std::string known;
  for (const std::string& symbol : sym::symbols_of(check.condition)) {
    const auto at = std::find(loaded_.symbols_.begin(), loaded_.symbols_.end(), symbol) - loaded_.symbols_.begin();
    known += fmt::format("{}{} = {}", known.empty() ? "" : ", ", symbol, context_.symbols[static_cast<size_t>(at)]);
  }
  throw UserError(known.empty() ? check.message : fmt::format("{} ({})", check.message, known));
}

// ---- symbols

// Lines bind their symbols in the order of the text, so that the next one is always this one.
void Run::set_symbol(const std::string& symbol, int64_t value, std::string_view from) {
  check_symbol(symbol, value, program_.facts, fmt::format("%{}", from));
  context_.symbols[static_cast<size_t>(next_symbol_++)] = value;
}

void Run::define_from(const std::vector<std::string>& defines, const std::vector<BufferId>& buffers, std::span<const Tensor> results) {
  for (const std::string& symbol : defines) {
    const Tensor* found = nullptr;
    for (size_t i = 0; i < buffers.size() && found == nullptr; ++i) {
      if (!buffers[i].valid()) continue;
      const op::TensorType& type = buffer(buffers[i]).type;
      FL_CHECK(results[i].valid() && results[i].dtype() == type.dtype && results[i].rank() == type.rank(), "%{}: expected {}, got {}",
               buffer(buffers[i]).name, op::to_string(type), results[i].valid() ? results[i].type_string() : "nothing");
      for (size_t d = 0; d < type.shape.size() && found == nullptr; ++d) {
        if (!type.shape[d].is_symbol() || type.shape[d].name() != symbol) continue;
        found = &results[i];
        set_symbol(symbol, found->dim(static_cast<int64_t>(d)), buffer(buffers[i]).name);
      }
    }
    FL_CHECK(found != nullptr, "program {}: no result has the size {} that its line defines", program_.name, symbol);
  }
}

void Run::open_stage(int32_t stage) {
  stage_ = stage;
  const size_t at = static_cast<size_t>(stage);
  const sym::Evaluator& evaluator = loaded_.evaluators_[at];
  evaluator.evaluate({context_.symbols.data(), static_cast<size_t>(loaded_.symbol_count_[at])}, context_.evaluator_scratch,
                     {context_.values.data() + loaded_.stage_base_[at], evaluator.result_count()});
}

// ---- memory

std::byte* Run::pointer(BufferId id) const {
  const BufferPlan& plan = loaded_.plan_of(id);
  const size_t storage = static_cast<size_t>(plan.storage);
  return static_cast<std::byte*>(context_.slots[static_cast<size_t>(loaded_.storages_[storage].slot)]) + entry_.arena_offsets[storage] +
         *values(plan.offset);
}

Dims Run::dims(BufferId id) const {
  const BufferPlan& plan = loaded_.plan_of(id);
  return {values(plan.dims), values(plan.dims) + plan.rank};
}

Tensor Run::tensor(BufferId id) const { return Tensor::borrow(buffer(id).type.dtype, dims(id), pointer(id)); }

void Run::take_storage(int32_t index) {
  const Storage& storage = loaded_.storages_[static_cast<size_t>(index)];
  const int64_t bytes = bytes_of(buffer(storage.buffer), values(loaded_.plan_of(storage.buffer).dims));
  void*& slot = context_.slots[static_cast<size_t>(storage.slot)];
  if (storage.index >= 0) {
    const size_t output = static_cast<size_t>(storage.index);
    const int64_t* const sizes = values(loaded_.outputs_[output].dims);
    if (!results_[output].valid()) make_result(output, sizes);
    FL_REQUIRE(same_dims(results_[output].dims(), sizes), "output '{}': the result is {}{}, the given tensor {}", program_.outputs[output].name,
               dtype_name(program_.outputs[output].type.dtype), dims_text({sizes, results_[output].dims().size()}), results_[output].type_string());
    if (context_.direct[output] != 0) {
      slot = results_[output].data();
      return;
    }
  }
  slot = context_.taken[static_cast<size_t>(index)] = context_.blocks.take(bytes);
  context_.used = true;
  if (loaded_.options_.poison) poison(slot, bytes);
}

// Takes a line's result as the buffer's value. Where the sizes were known before the line, the buffer has memory, which
// most lines have filled already; otherwise the result's memory becomes the buffer's.
void Run::deliver(BufferId id, Tensor value, bool placed) {
  const int64_t* const sizes = values(loaded_.plan_of(id).dims);
  FL_REQUIRE(value.rank() == loaded_.plan_of(id).rank && same_dims(value.dims(), sizes), "%{}: expected {} = {}, got {}", buffer(id).name,
             op::to_string(buffer(id).type), dims_text({sizes, value.dims().size()}), value.type_string());
  if (placed) {
    Tensor place = tensor(id);
    if (value.data() != place.data()) copy_elements(value, place);
    return;
  }
  const Storage& storage = storage_of(id);
  if (!value.contiguous() || value.owner() == nullptr || value.owner().use_count() > 1) value = value.contiguous_copy();
  context_.slots[static_cast<size_t>(storage.slot)] = value.data();
  if (storage.index >= 0) {
    const size_t output = static_cast<size_t>(storage.index);
    context_.direct[output] = results_[output].valid() ? 0 : 1;
    if (context_.direct[output] != 0) {
      // The result may be the buffer under another shape (a reshape of it).
      const int64_t* const result_sizes = values(loaded_.outputs_[output].dims);
      const op::TensorType& type = program_.outputs[output].type;
      Dims result_dims(result_sizes, result_sizes + type.rank());
      Dims strides = contiguous_strides(result_dims);
      results_[output] = Tensor::share(type.dtype, std::move(result_dims), std::move(strides), value.data(), value.owner());
      return;
    }
  }
  context_.adopted[static_cast<size_t>(loaded_.plan_of(id).storage)] = std::move(value);
  context_.used = true;
}

void Run::poison_storage(int32_t index) const {
  const Storage& storage = loaded_.storages_[static_cast<size_t>(index)];
  if (storage.place == Storage::Place::Arena) {
    poison(static_cast<std::byte*>(context_.slots[0]) + entry_.arena_offsets[static_cast<size_t>(index)], entry_.storage_bytes[static_cast<size_t>(index)]);
  } else if (storage.index < 0 || context_.direct[static_cast<size_t>(storage.index)] == 0) {
    poison(context_.slots[static_cast<size_t>(storage.slot)], bytes_of(buffer(storage.buffer), values(loaded_.plan_of(storage.buffer).dims)));
  }
}

}  // namespace fuseloom::run
