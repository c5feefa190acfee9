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

// Up to here, host tensors go through pinned memory in one transfer; more is faster copied where it lies.
constexpr int64_t kMostStaged = int64_t{4} << 20;

bool is_aligned(const Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.data()) % kDeviceAlignment == 0; }

std::string where_text(const Tensor& tensor) { return tensor.on_host() ? "the host" : fmt::format("cuda:{}", tensor.device().index); }

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
    FL_REQUIRE(inputs[i].on_host() || (device_ != nullptr && inputs[i].device() == device_->tag()), "input '{}' lies on {}, the program runs on {}",
               program_.input_names[i], where_text(inputs[i]), device_ == nullptr ? "the cpu" : fmt::format("cuda:{}", device_->index()));
    if (!options_.check_inputs) continue;
    FL_REQUIRE(inputs[i].valid(), "input '{}': expected {}, no tensor is given", program_.input_names[i], op::to_string(type));
    FL_REQUIRE(inputs[i].dtype() == type.dtype, "input '{}': expected {}, got {}", program_.input_names[i], op::to_string(type), inputs[i].type_string());
  }
}

std::unique_ptr<Context> LoadedProgram::take_context(CudaStream stream) const {
  std::unique_ptr<Context> context = contexts_.take(stream);
  if (context != nullptr) return context;
  context = std::make_unique<Context>();
  if (device_ != nullptr) {
    const Allocate allocate = [device = device_, stream](int64_t bytes) { return device->allocate(bytes, stream); };
    const Allocate pinned = [device = device_](int64_t bytes) { return device->allocate_pinned(bytes); };
    context->arena = GrowingBlock(allocate);
    context->blocks = BlockCache(allocate);
    context->device = std::make_unique<DeviceContext>();
    context->device->stream = stream;
    context->device->inputs = GrowingBlock(allocate);
    context->device->staging = GrowingBlock(pinned);
    context->device->words.resize(static_cast<size_t>(most_arguments_));
  }
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
  } borrowed{*this, take_context(mode.stream)};
  const std::shared_ptr<const Entry> entry = find_entry(inputs, mode.outer, *borrowed.context);
  Run(*this, *entry, *borrowed.context, inputs, results, mode).execute();
}

// ---- one run ---------------------------------------------------------------------------------------------------------

void Run::execute() {
  std::copy(entry_.symbols.begin(), entry_.symbols.end(), context_.symbols.begin());
  next_symbol_ = static_cast<int32_t>(entry_.symbols.size());
  context_.slots[0] = context_.arena.reserve(entry_.arena_bytes);
  if (loaded_.options_.poison) poison(context_.slots[0], entry_.arena_bytes);
  if (device_ == nullptr) {
    bind_inputs();
  } else {
    bind_inputs_on_device();
  }
  bind_results();
  if (!replay()) run_steps();
  finish_results();
  if (!timings_.empty()) finish_profile();
}

void Run::run_steps() {
  const bool instruments = mode_.profile || mode_.hook != nullptr || loaded_.options_.poison || loaded_.options_.synchronous;
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
}

// ---- graphs: the lines of a run as one launch

// A graph holds for one entry and exactly the pointers it was recorded with: it is recorded when the same come a second
// time, and kept while few others come in between.
bool Run::replay() {
  constexpr size_t kMostGraphs = 8;
  if (!loaded_.options_.graphs || device_ == nullptr || !loaded_.recordable_ || mode_.profile || mode_.hook != nullptr || loaded_.options_.poison ||
      loaded_.options_.synchronous)
    return false;
  std::vector<RecordedGraph>& graphs = context_.device->graphs;
  const auto known = std::find_if(graphs.begin(), graphs.end(), [&](const RecordedGraph& each) { return each.entry == context_.last && each.slots == context_.slots; });
  if (known == graphs.end()) {
    // Only an entry that stays can be recognised by its address.
    if (context_.last.get() != &entry_) return false;
    if (graphs.size() == kMostGraphs) graphs.pop_back();
    graphs.insert(graphs.begin(), {.entry = context_.last, .slots = context_.slots});
    return false;
  }
  std::rotate(graphs.begin(), known, known + 1);
  if (graphs[0].graph == nullptr) graphs[0].graph = record();
  device_->require(device_->driver().launch_graph(static_cast<CudaGraphExec>(graphs[0].graph.get()), stream_), "launch a graph");
  return true;
}

std::shared_ptr<void> Run::record() {
  const CudaDriver& driver = device_->driver();
  constexpr unsigned kNonBlocking = 1;
  constexpr int kThisThread = 1;  // calls of other threads do not disturb the capture
  CudaStream recording = nullptr;
  device_->require(driver.create_stream(&recording, kNonBlocking), "create a stream");
  const std::unique_ptr<void, std::function<void(void*)>> owner(recording, [&](void* stream) { driver.destroy_stream(static_cast<CudaStream>(stream)); });
  device_->require(driver.begin_capture(recording, kThisThread), "record a graph");
  stream_ = recording;
  run_steps();
  stream_ = mode_.stream;
  CudaGraph graph = nullptr;
  device_->require(driver.end_capture(recording, &graph), "record a graph");
  CudaGraphExec exec = nullptr;
  const CudaResult made = driver.instantiate_graph(&exec, graph, 0);
  driver.destroy_graph(graph);
  device_->require(made, "make a graph ready to run");
  return {exec, [device = loaded_.device_](void* held) { device->driver().destroy_graph_exec(static_cast<CudaGraphExec>(held)); }};
}

// ---- inputs

void Run::check_finite(size_t i, const Tensor& tensor) const {
  const Tensor host = on_host(tensor).to_contiguous();
  const int64_t index = first_not_finite(host), element = is_complex(host.dtype()) ? index / 2 : index;
  FL_REQUIRE(index < 0, "input '{}': element {} is {}, expected finite values", program_.input_names[i], element, host.at(element));
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
    if (loaded_.options_.check_finite) check_finite(i, context_.copies[i].valid() ? context_.copies[i] : input);
  }
  for (const auto& [slot, input] : loaded_.input_slots_) {
    const Tensor& copy = context_.copies[static_cast<size_t>(input)];
    const Tensor& bound = copy.valid() ? copy : inputs_[static_cast<size_t>(input)];
    context_.slots[static_cast<size_t>(slot)] = const_cast<void*>(bound.data());  // kernels do not write to inputs
  }
}

// What lies on the device, contiguous and aligned, is taken as it is. Everything else is copied to the context's memory,
// from the host in one transfer when it is little.
void Run::bind_inputs_on_device() {
  DeviceContext& own = *context_.device;
  const int64_t* strides = entry_.strides.data();
  int64_t copied_bytes = 0, host_bytes = 0;
  bool any_host = false, any_device = false;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Tensor& input = inputs_[i];
    (input.on_host() ? any_host : any_device) = true;
    if (loaded_.options_.check_finite) check_finite(i, input);
    const bool contiguous = same_dims(input.strides(), strides) || input.contiguous();
    strides += input.rank();
    if (!input.on_host() && contiguous && is_aligned(input)) continue;
    // Host inputs first: they are one part of the block, as in the staging.
    const int64_t bytes = align_up(std::max<int64_t>(input.bytes(), 1));
    copied_bytes += bytes;
    if (input.on_host()) host_bytes += bytes;
    context_.copies[i] = share(input.dtype(), input.dims(), contiguous_strides(input.dims()), &own, nullptr);  // its place follows
    context_.used = true;
  }
  switch (mode_.results) {
    case CallOptions::Results::LikeInputs: results_on_host_ = any_host && !any_device; break;
    case CallOptions::Results::Host: results_on_host_ = true; break;
    case CallOptions::Results::Device: results_on_host_ = false; break;
  }
  if (copied_bytes > 0) {
    std::byte* const block = own.inputs.reserve(copied_bytes);
    const bool staged = host_bytes > 0 && host_bytes <= kMostStaged;
    if (staged && own.staging_busy) {
      device_->require(device_->driver().synchronize_event(static_cast<CudaEvent>(own.staging_free.get())), "wait for an event");
      own.staging_busy = false;
    }
    std::byte* const staging = staged ? own.staging.reserve(host_bytes) : nullptr;
    int64_t host_at = 0, at = host_bytes;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      Tensor& copy = context_.copies[i];
      if (!copy.valid()) continue;
      const Tensor& input = inputs_[i];
      int64_t& offset = input.on_host() ? host_at : at;
      copy = share(input.dtype(), input.dims(), contiguous_strides(input.dims()), block + offset, nullptr);
      if (staged && input.on_host()) {
        Tensor packed = Tensor::borrow(input.dtype(), input.dims(), staging + offset);
        if (input.contiguous()) {
          if (input.bytes() > 0) std::memcpy(packed.data(), input.data(), static_cast<size_t>(input.bytes()));
        } else {
          op::copy_strided(input.dtype(), packed.data(), packed.strides(), input.data(), input.strides(), input.dims());
        }
      } else {
        device_->copy_elements(input, copy, stream_);
      }
      offset += align_up(std::max<int64_t>(input.bytes(), 1));
    }
    if (staged) {
      device_->upload(block, staging, host_bytes, stream_);
      if (own.staging_free == nullptr) own.staging_free = device_->create_event();
      device_->require(device_->driver().record_event(static_cast<CudaEvent>(own.staging_free.get()), stream_), "record an event");
      own.staging_busy = true;
    }
  }
  for (const auto& [slot, input] : loaded_.input_slots_) {
    const Tensor& copy = context_.copies[static_cast<size_t>(input)];
    const Tensor& bound = copy.valid() ? copy : inputs_[static_cast<size_t>(input)];
    context_.slots[static_cast<size_t>(slot)] = const_cast<void*>(bound.data());
  }
}

// ---- results

bool Run::shares_input(const OutputPlan& plan) const {
  if (plan.source != BufferKind::Input || mode_.sharing == Sharing::Never) return false;
  // A copy on the device is the context's; on the host, the result is a copy anyway.
  if (device_ != nullptr && (results_on_host_ || context_.copies[static_cast<size_t>(plan.input)].valid())) return false;
  return plan.has_strides || mode_.sharing == Sharing::Anything;
}

bool Run::is_on_host(size_t output) const { return results_[output].valid() ? results_[output].on_host() : results_on_host_; }

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
  FL_REQUIRE(given.on_host() || (device_ != nullptr && given.device() == device_->tag()), "output '{}': the given tensor lies on {}, the program runs on {}",
             program_.outputs[i].name, where_text(given), device_ == nullptr ? "the cpu" : fmt::format("cuda:{}", device_->index()));
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
  } else if (device_ != nullptr && (given.on_host() || !is_aligned(given))) {
    context_.direct[i] = 0;
  } else if (loaded_.options_.poison) {
    poison(given.data(), given.bytes());
  }
}

void Run::make_result(size_t i, const int64_t* dims) {
  const op::TensorType& type = program_.outputs[i].type;
  Dims sizes(dims, dims + type.rank());
  if (device_ != nullptr && !results_on_host_) {
    results_[i] = device_->empty(type.dtype, std::move(sizes), stream_);
    if (loaded_.options_.poison) poison(results_[i].data(), results_[i].bytes());
    return;
  }
  Dims strides = contiguous_strides(sizes);
  const int64_t bytes = dtype_bytes(type.dtype, element_count(sizes));
  std::shared_ptr<void> memory = allocate_shared(bytes);
  void* const data = memory.get();
  if (loaded_.options_.poison && bytes > 0) std::memset(data, kPoison, static_cast<size_t>(bytes));
  results_[i] = Tensor::share(type.dtype, std::move(sizes), std::move(strides), data, std::move(memory));
}

void Run::bind_results() {
  for (size_t i = 0; i < results_.size(); ++i) {
    const OutputPlan& plan = loaded_.outputs_[i];
    context_.direct[i] = plan.direct >= 0 ? 1 : 0;
    if (results_[i].valid()) accept_result(i);
    if (plan.direct < 0) continue;
    if (device_ != nullptr && is_on_host(i)) context_.direct[i] = 0;
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
  return share(output.type.dtype, std::move(dims), std::move(strides), pointer(output.buffer) + *values(plan.offset), std::move(owner));
}

void Run::finish_results() {
  // When a given result lies over an input, what comes from inputs is read before anything is written.
  std::vector<Tensor> staged;
  if (overlap_) {
    staged.resize(results_.size());
    for (size_t i = 0; i < results_.size(); ++i) {
      if (loaded_.outputs_[i].source == BufferKind::Input) staged[i] = on_host(source_of(i)).contiguous_copy();
    }
  }
  std::vector<size_t> to_host;
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
    if (device_ != nullptr && results_[i].on_host() && !source.on_host() && source.contiguous()) {
      to_host.push_back(i);
    } else {
      copy_elements(source, results_[i]);
    }
  }
  if (!to_host.empty()) give_to_host(to_host);
}

// All results that lie on the device as they are wanted on the host; waits once.
void Run::give_to_host(std::span<const size_t> outputs) {
  int64_t total = 0;
  for (const size_t i : outputs) total += align_up(std::max<int64_t>(results_[i].bytes(), 1));
  const bool staged = total <= kMostStaged;
  // The stream reads the inputs from the staging before it writes results to it.
  std::byte* at = nullptr;
  if (staged) {
    if (total > context_.device->staging.capacity()) device_->synchronize(stream_);
    at = context_.device->staging.reserve(total);
  }
  std::byte* const start = at;
  for (const size_t i : outputs) {
    const int64_t bytes = results_[i].bytes();
    void* const target = staged ? at : results_[i].data();
    if (bytes > 0) {
      const CudaAddress from = reinterpret_cast<CudaAddress>(source_of(i).data());
      device_->require(device_->driver().copy_to_host(target, from, static_cast<size_t>(bytes), stream_), fmt::format("give {} bytes to the host", bytes));
    }
    at += staged ? align_up(std::max<int64_t>(bytes, 1)) : 0;
  }
  device_->synchronize(stream_);
  context_.device->staging_busy = false;
  if (!staged) return;
  at = start;
  for (const size_t i : outputs) {
    const int64_t bytes = results_[i].bytes();
    if (bytes > 0) std::memcpy(results_[i].data(), at, static_cast<size_t>(bytes));
    at += align_up(std::max<int64_t>(bytes, 1));
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
  if (mode_.profile) profile(line, start, seconds_now(), bytes);
  if (device_ != nullptr && loaded_.options_.synchronous) {
    try {
      device_->synchronize(stream_);
    } catch (const InternalError& error) {
      throw InternalError(fmt::format("program {}, line {} ({}): {}", program_.name, line, what.origin, error.what()));
    }
  }
  if (mode_.hook != nullptr) {
    std::vector<Tensor> written;
    for (const BufferId id : step.written) written.push_back(host_tensor(id));
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

// The time of a launch on a device is that between two events, which is known when the run is over; everything else
// waits for the device itself.
void Run::profile(size_t line, double start, double end, int64_t bytes) {
  if (device_ != nullptr && loaded_.steps_[line].kind == Step::Kind::Launch) {
    timings_.back().line = line;
    timings_.back().start = start;
    timings_.back().host_seconds = end - start;
    timings_.back().bytes = bytes;
  } else {
    loaded_.profiler_.add(line, start, end, bytes);
  }
}

void Run::finish_profile() {
  device_->synchronize(stream_);
  for (const Timing& timing : timings_) {
    float milliseconds = 0;
    device_->require(device_->driver().elapsed_time(&milliseconds, static_cast<CudaEvent>(timing.begin.get()), static_cast<CudaEvent>(timing.end.get())),
                     "tell a time");
    loaded_.profiler_.add(timing.line, timing.start, timing.start + milliseconds * 1e-3, timing.bytes, timing.host_seconds);
  }
}

int64_t Run::launch_on_device(const Step& step) {
  const size_t index = static_cast<size_t>(step.index);
  const PackedLaunch* packed = &entry_.launches[index];
  const PackedCudaLaunch* cuda = &entry_.cuda_launches[index];
  PackedLaunch sized;
  PackedCudaLaunch sized_cuda;
  const LaunchPlan& plan = loaded_.launches_[index];
  if (packed->sizes == nullptr) [[unlikely]] {
    sized = *packed;
    sized_cuda = pack_cuda_launch(sized, plan, values(plan.values), *device_, loaded_.options_);
    packed = &sized;
    cuda = &sized_cuda;
  }
  if (mode_.profile) [[unlikely]] {
    timings_.push_back({.begin = device_->create_event(), .end = device_->create_event()});
    loaded_.profiler_.describe(static_cast<size_t>(&step - loaded_.steps_.data()), *cuda, *device_);
    device_->require(device_->driver().record_event(static_cast<CudaEvent>(timings_.back().begin.get()), stream_), "record an event");
  }
  if (cuda->product != nullptr) {
    const auto at = [&](int32_t argument, int64_t bytes) -> std::byte* {
      const Argument& of = packed->arguments[argument];
      return static_cast<std::byte*>(context_.slots[static_cast<size_t>(of.slot)]) + of.offset + bytes;
    };
    const program::MatrixProduct& product = *plan.product;
    device_->make_current();
    device_->products()->run(*cuda->product,
                             {.left = at(product.left.buffer, cuda->left),
                              .right = at(product.right.buffer, cuda->right),
                              .bias = product.bias < 0 ? nullptr : at(product.bias, cuda->bias),
                              .result = at(product.result.buffer, cuda->result),
                              .workspace = at(packed->argument_count, 0)},
                             stream_);
  } else if (!cuda->empty) {
    uint64_t* const words = context_.device->words.data();
    size_t count = 0;
    for (int32_t i = 0; i < packed->argument_count; ++i) {
      const Argument& argument = packed->arguments[i];
      words[count++] = reinterpret_cast<uint64_t>(context_.slots[static_cast<size_t>(argument.slot)]) + static_cast<uint64_t>(argument.offset);
    }
    for (int32_t i = 0; i < plan.size_count; ++i) words[count++] = static_cast<uint64_t>(packed->sizes[i]);
    device_->launch(cuda->launch, words, count, stream_);
  }
  if (mode_.profile) [[unlikely]]
    device_->require(device_->driver().record_event(static_cast<CudaEvent>(timings_.back().end.get()), stream_), "record an event");
  return packed->bytes;
}

int64_t Run::launch(const Step& step) {
  if (device_ != nullptr) return launch_on_device(step);
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
  const bool poisoned = loaded_.options_.poison;
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
    inputs.push_back(id.valid() ? host_tensor(id) : Tensor());
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
      outputs.push_back(device_ == nullptr ? tensor(id) : Tensor(buffer(id).type.dtype, dims(id)));
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
  if (device_ != nullptr) {
    device_->copy(pointer(copy.to), pointer(copy.from), bytes, stream_);
  } else if (bytes > 0) {
    std::memmove(pointer(copy.to), pointer(copy.from), static_cast<size_t>(bytes));
  }
}

void Run::read(const program::ReadSymbols& read) {
  const Tensor source = host_tensor(read.from);
  const BufferPlan& plan = loaded_.plan_of(read.from);
  int64_t count = 1;
  for (int32_t d = 0; d < plan.rank; ++d) count *= values(plan.dims)[d];
  FL_REQUIRE(count == static_cast<int64_t>(read.defines.size()), "%{} has {} elements, expected {} for {}", buffer(read.from).name, count,
             read.defines.size(), fmt::join(read.defines, ", "));
  for (size_t i = 0; i < read.defines.size(); ++i) {
    const int64_t value = op::with_storage(buffer(read.from).type.dtype, [&]<class Element>() -> int64_t {
      return op::store<int64_t>(op::load(source.as<Element>()[i]));
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

Tensor Run::tensor(BufferId id) const {
  Dims sizes = dims(id);
  Dims strides = contiguous_strides(sizes);
  return share(buffer(id).type.dtype, std::move(sizes), std::move(strides), pointer(id), nullptr);
}

// Memory of the program's device.
Tensor Run::share(DType dtype, Dims dims, Dims strides, void* data, std::shared_ptr<void> owner) const {
  if (device_ == nullptr) return Tensor::share(dtype, std::move(dims), std::move(strides), data, std::move(owner));
  return Tensor::on_device(device_->tag(), dtype, std::move(dims), std::move(strides), data, std::move(owner));
}

void Run::copy_elements(const Tensor& from, Tensor& to) const {
  if (device_ != nullptr) {
    device_->copy_elements(from, to, stream_);
  } else if (from.count() == 0) {
    return;
  } else if (from.contiguous() && to.contiguous()) {
    std::memmove(to.data(), from.data(), static_cast<size_t>(from.bytes()));
  } else {
    op::copy_strided(from.dtype(), to.data(), to.strides(), from.data(), from.strides(), from.dims());
  }
}

void Run::poison(void* data, int64_t bytes) const {
  if (bytes <= 0) return;
  if (device_ != nullptr) {
    device_->fill(data, kPoison, bytes, stream_);
  } else {
    std::memset(data, kPoison, static_cast<size_t>(bytes));
  }
}

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
  if (device_ != nullptr) {
    if (value.on_host() || !value.contiguous() || value.owner() == nullptr || value.owner().use_count() > 1) {
      Tensor moved = device_->empty(value.dtype(), value.dims(), stream_);
      copy_elements(value, moved);
      value = std::move(moved);
    }
  } else if (!value.contiguous() || value.owner() == nullptr || value.owner().use_count() > 1) {
    value = value.contiguous_copy();
  }
  context_.slots[static_cast<size_t>(storage.slot)] = value.data();
  if (storage.index >= 0) {
    const size_t output = static_cast<size_t>(storage.index);
    context_.direct[output] = results_[output].valid() || results_on_host_ ? 0 : 1;
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
