// Branches and loops: nested programs with contexts of their own.
#include <cstring>
#include <limits>

#include "base/check.h"
#include "run/interpreter.h"

namespace fuseloom::run {

using program::BufferId;

namespace {

Tensor one_element(const op::TensorType& type, int64_t value) {
  return Tensor::of_ints(type.dtype, Dims(static_cast<size_t>(type.rank()), 1), {&value, 1});
}

}  // namespace

std::vector<int64_t> Run::outer_values(const LoadedProgram::Nested& nested) const {
  std::vector<int64_t> outer;
  for (const int32_t symbol : nested.outer) outer.push_back(context_.symbols[static_cast<size_t>(symbol)]);
  return outer;
}

void Run::branch(const Step& step, const program::If& branch) {
  const Tensor condition = host_tensor(branch.condition);
  FL_REQUIRE(condition.count() == 1, "the condition %{} of a branch has {} elements, expected one", buffer(branch.condition).name, condition.count());
  const LoadedProgram::Nested& nested = loaded_.nested_[static_cast<size_t>(step.index)][condition.int_at(0) != 0 ? 0 : 1];
  std::vector<Tensor> inputs, results;
  for (const BufferId id : branch.inputs) inputs.push_back(tensor(id));
  // A result whose sizes are known is written where it belongs.
  for (const BufferId id : branch.outputs) results.push_back(id.valid() && known(loaded_.plan_of(id).dims) ? tensor(id) : Tensor());
  const std::vector<int64_t> outer = outer_values(nested);
  nested.program->run(inputs, results,
                      {.outer = outer,
                       .sharing = Sharing::Never,
                       .profile = mode_.profile,
                       .hook = mode_.hook,
                       .stream = stream_,
                       .results = CallOptions::Results::Device});
  finish_line(step, branch.defines, branch.outputs, results);
}

struct Run::LoopState {
  std::vector<Tensor> inputs;    // of the body: iteration, condition, carried values, captures
  std::vector<Tensor> spare;     // by carried value: memory of the iteration before the last, which nobody reads
  struct Scan {
    Dims dims;                   // of one element
    std::vector<std::byte> bytes;
  };
  std::vector<Scan> scans;
  int64_t trips = 0;
};

void Run::loop(const Step& step, const program::While& loop) {
  LoopState state;
  state.inputs.resize(2);
  for (const BufferId id : loop.inputs) state.inputs.push_back(tensor(id));
  state.spare.resize(static_cast<size_t>(loop.carried));
  state.scans.resize(static_cast<size_t>(loop.scans));
  iterate(step, loop, state);

  std::vector<Tensor> results;
  for (int32_t i = 0; i < loop.carried; ++i) results.push_back(std::move(state.inputs[2 + static_cast<size_t>(i)]));
  for (size_t i = 0; i < state.scans.size(); ++i) results.push_back(stacked(state, loop, i));
  finish_line(step, loop.defines, loop.outputs, results);
}

void Run::iterate(const Step& step, const program::While& loop, LoopState& state) {
  const LoadedProgram::Nested& nested = loaded_.nested_[static_cast<size_t>(step.index)][0];
  const std::vector<op::TensorType>& types = loop.body->input_types;
  const std::vector<int64_t> outer = outer_values(nested);
  const int64_t most = loop.trip_count.valid() ? host_tensor(loop.trip_count).int_at(0) : std::numeric_limits<int64_t>::max();
  bool condition = !loop.condition.valid() || host_tensor(loop.condition).int_at(0) != 0;
  const size_t carried = state.spare.size();
  std::vector<Tensor> results(1 + carried + state.scans.size());
  for (; condition && state.trips < most; ++state.trips) {
    state.inputs[0] = one_element(types[0], state.trips);
    state.inputs[1] = one_element(types[1], 1);
    // Two sets of carried values take turns. A value that something else still holds keeps its memory.
    for (size_t i = 0; i < carried; ++i) {
      Tensor& spare = state.spare[i];
      results[1 + i] = spare.owner() != nullptr && spare.owner().use_count() == 1 ? std::move(spare) : Tensor();
      spare = Tensor();
    }
    nested.program->run(state.inputs, results,
                        {.outer = outer,
                         .sharing = Sharing::Anything,
                         .offers = true,
                         .profile = mode_.profile,
                         .hook = mode_.hook,
                         .stream = stream_,
                         .results = CallOptions::Results::Device});
    condition = on_host(results[0]).int_at(0) != 0;
    for (size_t i = 0; i < carried; ++i) {
      state.spare[i] = std::move(state.inputs[2 + i]);
      state.inputs[2 + i] = std::move(results[1 + i]);
    }
    for (size_t i = 0; i < state.scans.size(); ++i) {
      LoopState::Scan& scan = state.scans[i];
      const Tensor element = on_host(results[1 + carried + i]).to_contiguous();
      FL_REQUIRE(state.trips == 0 || element.dims() == scan.dims, "stacked result {} of a loop: iteration {} gives {}, those before gave [{}]", i,
                 state.trips, element.type_string(), fmt::join(scan.dims, ", "));
      scan.dims = element.dims();
      const std::byte* const data = static_cast<const std::byte*>(element.data());
      if (element.bytes() > 0) scan.bytes.insert(scan.bytes.end(), data, data + element.bytes());
    }
  }
}

// The elements on a new first dimension. Without elements, the sizes that the loop itself would define are 0.
Tensor Run::stacked(const LoopState& state, const program::While& loop, size_t scan) const {
  const BufferId id = loop.outputs[state.spare.size() + scan];
  const Dims& element = state.scans[scan].dims;
  Dims sizes{state.trips};
  if (state.trips > 0) {
    sizes.insert(sizes.end(), element.begin(), element.end());
  } else if (id.valid() && known(loaded_.plan_of(id).dims)) {
    sizes = dims(id);
    sizes[0] = 0;
  } else {
    std::map<std::string, int64_t> symbols;
    for (int32_t i = 0; i < next_symbol_; ++i) symbols[loaded_.symbols_[static_cast<size_t>(i)]] = context_.symbols[static_cast<size_t>(i)];
    const op::Shape& shape = loop.body->outputs[1 + state.spare.size() + scan].type.shape;
    const op::Shape* const declared = id.valid() ? &buffer(id).type.shape : nullptr;
    for (size_t d = 0; d < shape.size(); ++d) {
      bool bound = declared != nullptr;
      if (bound) {
        for (const std::string& symbol : sym::symbols_of((*declared)[d + 1])) bound = bound && symbols.count(symbol) != 0;
      }
      sizes.push_back(bound ? sym::evaluate((*declared)[d + 1], symbols) : 0);
    }
  }
  Tensor result(loop.body->outputs[1 + state.spare.size() + scan].type.dtype, std::move(sizes));
  const std::vector<std::byte>& bytes = state.scans[scan].bytes;
  if (!bytes.empty()) std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

}  // namespace fuseloom::run
