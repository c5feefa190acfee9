// Any calls of a compiled model (abi_model.fl) through the C interface. Every struct is exactly as large as it says, so that the
// address sanitizer sees a library that reads more. What is checked: a status and words for whatever is wrong, nothing written
// by a call that is refused, the same bits as a plain call where one succeeds, no memory lost when there is none to be had.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fuseloom/abi.h"

extern "C" const fuseloom_api* abi_model_model(uint32_t abi_version);

namespace {

#define EXPECT(condition)                                                      \
  do {                                                                         \
    if (!(condition)) {                                                        \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                            \
    }                                                                          \
  } while (false)

constexpr unsigned char kPattern = 0xAB;
constexpr size_t kLargestStruct = 4096;   // larger ones are refused
constexpr int64_t kMostBytes = 1 << 20;   // of an input that is really there

// What the bytes decide; zero when they have run out.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}
  bool done() const { return data_ == end_; }
  uint8_t byte() { return done() ? 0 : *data_++; }
  bool one_in(int count) { return byte() % count == 1; }
  int64_t number() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return static_cast<int64_t>(value);
  }
  // Mostly small ones, sometimes those at the edges.
  int64_t size() {
    const uint8_t kind = byte();
    if (kind < 200) return kind % 12;
    if (kind < 230) return byte();
    static const int64_t kEdges[] = {-1, 100, 101, int64_t{1} << 31, int64_t{1} << 32, (int64_t{1} << 58) - 1, int64_t{1} << 58, INT64_MAX, INT64_MIN};
    return kind < 250 ? kEdges[byte() % std::size(kEdges)] : number();
  }
  size_t struct_size(size_t right) {
    switch (byte() % 16) {
      case 1: return 0;
      case 2: return right - 8;
      case 3: return right + 8;
      case 4: return kLargestStruct;
      case 5: return kLargestStruct + 1;
      case 6: return static_cast<size_t>(number());
      default: return right;
    }
  }

 private:
  const uint8_t* data_;
  const uint8_t* const end_;
};

// `count` structs that lie `size` bytes apart, with `size` in each: exactly this memory, though never less than the size itself.
template <class Struct>
class Structs {
 public:
  Structs(size_t size, size_t count, const Struct* from)
      : distance_(size < sizeof(size_t) || size > kLargestStruct + 1 ? sizeof(size_t) : size), bytes_(distance_ * count) {
    for (size_t i = 0; i < count; ++i) {
      Struct each = from[i];
      std::memcpy(&each, &size, sizeof size);
      std::memcpy(bytes_.data() + i * distance_, &each, std::min(distance_, sizeof(Struct)));
    }
  }
  Struct* data() { return reinterpret_cast<Struct*>(bytes_.data()); }
  // A copy of element i, as far as it goes.
  Struct at(size_t i) const {
    Struct each = {};
    std::memcpy(&each, bytes_.data() + i * distance_, std::min(distance_, sizeof(Struct)));
    return each;
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  size_t distance_;
  std::vector<char> bytes_;
};

// ---- memory of the caller that runs out when the bytes say so
struct Heap {
  int allowed = INT32_MAX, held = 0;
  static void* allocate(void* user, size_t bytes, size_t alignment) {
    Heap* const heap = static_cast<Heap*>(user);
    if (heap->allowed-- <= 0 || bytes > size_t{64} << 20) return nullptr;
    ++heap->held;
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  static void release(void* user, void* memory, size_t) {
    --static_cast<Heap*>(user)->held;
    std::free(memory);
  }
};

void backwards(void*, int32_t count, void (*task)(void* data, int32_t index), void* data) {
  for (int32_t i = count; i-- > 0;) task(data, i);
}

std::vector<char> weights_of_model() {
  std::vector<char> bytes;
  FILE* const file = std::fopen(FUSELOOM_ABI_FUZZ_WEIGHTS, "rb");
  EXPECT(file != nullptr);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) bytes.push_back(static_cast<char>(c));
  std::fclose(file);
  return bytes;
}

bool all_pattern(const char* data, size_t bytes) {
  return std::all_of(data, data + bytes, [](char c) { return static_cast<unsigned char>(c) == kPattern; });
}

struct AlignedMemory {
  explicit AlignedMemory(size_t bytes_, size_t offset = 0) : bytes(bytes_) {
    EXPECT(posix_memalign(&whole, 64, offset + bytes) == 0);   // not a byte more
    data = static_cast<char*>(whole) + offset;
    std::memset(data, kPattern, bytes);
  }
  bool untouched() const { return all_pattern(data, bytes); }
  ~AlignedMemory() { std::free(whole); }
  AlignedMemory(const AlignedMemory&) = delete;
  void* whole = nullptr;
  char* data = nullptr;
  size_t bytes;
};

// A status has words where there was room for them.
void expect_words(int32_t status, const fuseloom_error& error, bool usable) {
  EXPECT(status >= FUSELOOM_OK && status <= FUSELOOM_CHECK_FAILED);
  if (!usable) return;
  EXPECT(error.status == status);
  EXPECT(std::memchr(error.message, 0, sizeof error.message) != nullptr);
  EXPECT((error.message[0] != 0) == (status != FUSELOOM_OK));
}

class Session {
 public:
  Session(Choices& choices, const std::vector<char>& weights) : choices_(choices), weights_(weights.size()) {
    std::memcpy(weights_.data, weights.data(), weights.size());
    weights_bytes_ = weights.size();
  }
  ~Session() {
    for (fuseloom_instance* instance : instances_) api_->destroy(instance);
    EXPECT(heap_.held == 0);
  }

  void create() {
    fuseloom_options options = {};
    options.threads = choices_.one_in(8) ? static_cast<int32_t>(choices_.number()) : 1 + choices_.byte() % 3;
    if (options.threads > 3 && options.threads <= 1024) options.threads = 3;
    if (options.threads == 0) options.threads = 1;
    options.isa = choices_.one_in(4) ? static_cast<int32_t>(static_cast<int8_t>(choices_.byte())) : FUSELOOM_ISA_BEST;
    options.weights = weights_.data;
    options.weights_bytes = weights_bytes_;
    std::unique_ptr<AlignedMemory> other;
    switch (choices_.byte() % 16) {
      case 1: options.weights = nullptr; break;
      case 2: options.weights = weights_.data + 4; break;
      case 3: options.weights_bytes = choices_.byte(); break;
      case 4:   // its head only: what is behind is checked by nobody
        other = std::make_unique<AlignedMemory>(weights_bytes_);
        std::memcpy(other->data, weights_.data, weights_bytes_);
        other->data[choices_.byte() % 48] ^= static_cast<char>(choices_.byte() | 1);
        options.weights = other->data;
        break;
      case 5:
        options.weights = nullptr;
        options.weights_path = "/no/such/file";
        break;
      case 6:
        options.weights = nullptr;
        options.weights_path = FUSELOOM_ABI_FUZZ_WEIGHTS;
        break;
      default: break;
    }
    if (choices_.one_in(3)) options.parallel_for = backwards;
    heap_.allowed = choices_.one_in(4) ? choices_.byte() % 8 : INT32_MAX;
    options.allocate = Heap::allocate;
    options.release = Heap::release;
    options.allocate_user = &heap_;
    if (choices_.one_in(16)) options.release = nullptr;
    if (choices_.one_in(4) && !instances_.empty()) options.share_with = instances_[choices_.byte() % instances_.size()];
    alignas(64) char garbage[256] = {};
    if (choices_.one_in(32)) options.share_with = reinterpret_cast<fuseloom_instance*>(garbage);
    Structs<fuseloom_options> given(choices_.struct_size(sizeof options), 1, &options);
    fuseloom_instance* instance = nullptr;
    const bool out = !choices_.one_in(32);
    const int32_t status = called([&](fuseloom_error* error) { return api_->create(given.data(), out ? &instance : nullptr, error); });
    EXPECT((status == FUSELOOM_OK) == (instance != nullptr));
    heap_.allowed = INT32_MAX;
    if (instance == nullptr) return;
    // A head that was damaged is noticed; not being looked at, it is that of an instance which lends its weights.
    EXPECT(other == nullptr || options.share_with != nullptr);
    EXPECT(api_->isa(instance) >= FUSELOOM_ISA_BASELINE);
    instances_.push_back(instance);
  }

  void destroy() {
    if (instances_.empty()) return;
    const size_t which = choices_.byte() % instances_.size();
    api_->destroy(instances_[which]);
    instances_.erase(instances_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void call() {
    fuseloom_instance* const instance = instances_.empty() || choices_.one_in(32) ? nullptr : instances_[choices_.byte() % instances_.size()];
    const uint8_t what = choices_.byte() % 4;
    // 1. Inputs, right or wrong in one place or several. Their memory is as large as their sizes and strides say, or absent.
    const int64_t n = choices_.size(), m = choices_.size();
    fuseloom_input inputs[4] = {};
    std::vector<std::vector<int64_t>> sizes, strides;
    std::vector<std::unique_ptr<std::vector<char>>> memory;
    const char* const names[] = {"x", "k", "none", "", nullptr};
    const bool swapped = choices_.one_in(4);
    for (int i = 0; i < 4; ++i) {
      const bool is_x = (i == 0) != swapped;
      fuseloom_input& input = inputs[i];
      input.name = choices_.one_in(16) ? names[choices_.byte() % std::size(names)] : is_x ? "x" : "k";
      input.dtype = choices_.one_in(16) ? static_cast<int32_t>(static_cast<int8_t>(choices_.byte())) : is_x ? FUSELOOM_F32 : FUSELOOM_I64;
      std::vector<int64_t>& dims = sizes.emplace_back(is_x ? std::vector<int64_t>{n, m} : std::vector<int64_t>{m});
      if (choices_.one_in(16)) dims.push_back(choices_.size());
      if (choices_.one_in(16)) dims.back() = choices_.size();
      input.rank = static_cast<int32_t>(dims.size());
      if (choices_.one_in(32)) {
        input.rank = static_cast<int32_t>(choices_.number());
        if (input.rank > 0 && input.rank <= FUSELOOM_MAX_RANK) dims.resize(static_cast<size_t>(input.rank), 1);
      }
      dims.shrink_to_fit();
      input.sizes = choices_.one_in(64) ? nullptr : dims.data();
      // How far its elements reach from the first, both ways.
      std::vector<int64_t>& steps = strides.emplace_back();
      if (choices_.one_in(4)) {
        for (size_t d = 0; d < dims.size(); ++d) steps.push_back(static_cast<int64_t>(choices_.byte() % 9) - 4);
        input.strides = steps.data();
      }
      int64_t low = 0, high = 0, product = 1;
      bool empty = false, countable = true;
      for (size_t d = 0; d < dims.size(); ++d) {
        empty = empty || dims[d] == 0;
        countable = countable && dims[d] >= 0 && dims[d] <= kMostBytes && (product *= std::max<int64_t>(1, dims[d])) <= kMostBytes / 16;
        if (!countable || steps.empty()) continue;
        (steps[d] < 0 ? low : high) += steps[d] * (std::max<int64_t>(1, dims[d]) - 1);
      }
      if (steps.empty()) high = product - 1;
      if (empty || !countable || choices_.one_in(32)) continue;
      const int64_t bytes = is_x ? 4 : 8;
      std::vector<char>& data = *memory.emplace_back(std::make_unique<std::vector<char>>(static_cast<size_t>((high - low + 1) * bytes)));
      for (size_t at = 0; at + 4 <= data.size(); at += 4) {
        const float number = static_cast<float>(at * 2654435761u % 1000) / 500.0f - 1.0f;
        std::memcpy(&data[at], &number, 4);
      }
      input.data = data.data() - low * bytes;
    }
    const int64_t count = choices_.one_in(16) ? choices_.number() : choices_.one_in(8) ? choices_.byte() % 5 : 2;
    const size_t there = static_cast<size_t>(std::clamp<int64_t>(count, 1, 4));
    Structs<fuseloom_input> given(choices_.struct_size(sizeof(fuseloom_input)), there, inputs);
    const fuseloom_input* const given_inputs = choices_.one_in(32) ? nullptr : given.data();

    if (what == 0) {
      size_t bytes = 12345;
      const bool out = !choices_.one_in(32);
      const int32_t status = called([&](fuseloom_error* error) { return api_->arena_bytes(instance, given_inputs, count, out ? &bytes : nullptr, error); });
      EXPECT(status == FUSELOOM_OK || bytes == 12345);
      return;
    }

    // 2. Outputs: in memory of the caller's, over an input or over each other, or asked for.
    fuseloom_output outputs[4];
    std::memset(outputs, 0, sizeof outputs);
    const char* const output_names[] = {"y", "z", "p"};
    std::vector<std::unique_ptr<AlignedMemory>> results;
    for (int i = 0; i < 4; ++i) {
      fuseloom_output& output = outputs[i];
      output.name = choices_.one_in(16) ? names[choices_.byte() % std::size(names)] : choices_.one_in(2) ? nullptr : output_names[i % 3];
      const size_t room = choices_.one_in(8) ? choices_.byte() : size_t{1} << 16;
      results.push_back(std::make_unique<AlignedMemory>(room));
      output.data = results.back()->data;
      output.capacity = room;
      if (choices_.one_in(8)) {
        output.data = nullptr;
        output.capacity = static_cast<size_t>(choices_.number());
      } else if (i > 0 && choices_.one_in(32)) {
        output.data = results[0]->data;
        output.capacity = outputs[0].capacity;
      } else if (!memory.empty() && choices_.one_in(16)) {
        output.data = memory[0]->data();
        output.capacity = memory[0]->size();
      }
    }
    const int64_t output_count = choices_.one_in(16) ? choices_.number() : choices_.one_in(4) ? choices_.byte() % 5 : 3;
    const size_t outputs_there = static_cast<size_t>(std::clamp<int64_t>(output_count, 1, 4));
    Structs<fuseloom_output> given_outputs(choices_.struct_size(sizeof(fuseloom_output)), outputs_there, outputs);
    fuseloom_output* const outputs_pointer = choices_.one_in(32) ? nullptr : given_outputs.data();
    const std::vector<char> outputs_before = given_outputs.bytes();

    if (what == 1) {
      const int32_t status = called([&](fuseloom_error* error) { return api_->output_sizes(instance, given_inputs, count, outputs_pointer, output_count, error); });
      EXPECT(status == FUSELOOM_OK || given_outputs.bytes() == outputs_before);
      for (const std::unique_ptr<AlignedMemory>& each : results) EXPECT(each->untouched());
      return;
    }

    // 3. The call itself.
    fuseloom_arguments arguments = {};
    arguments.input_count = count;
    arguments.inputs = given_inputs;
    arguments.output_count = output_count;
    arguments.outputs = outputs_pointer;
    const AlignedMemory arena(size_t{1} << 16, choices_.one_in(8) ? choices_.byte() : 0);
    if (choices_.one_in(2)) {
      arguments.arena = arena.data;
      arguments.arena_bytes = choices_.one_in(4) ? choices_.byte() * size_t{64} : size_t{1} << 16;
      if (choices_.one_in(16)) arguments.arena = outputs[0].data;
      if (arguments.arena == outputs[0].data) arguments.arena_bytes = outputs[0].capacity;
      if (arguments.arena == nullptr) arguments.arena_bytes = 0;
    }
    std::vector<std::unique_ptr<AlignedMemory>> asked;
    struct Asked {
      std::vector<std::unique_ptr<AlignedMemory>>* memory;
      bool refuses;
    } allocation{&asked, choices_.one_in(8)};
    if (choices_.one_in(2)) {
      arguments.allocate_output = [](void* user, int64_t output, size_t bytes) -> void* {
        Asked* const into = static_cast<Asked*>(user);
        EXPECT(output >= 0 && output < 3);
        if (into->refuses || bytes > size_t{64} << 20) return nullptr;
        return into->memory->emplace_back(std::make_unique<AlignedMemory>(bytes))->data;
      };
      arguments.allocate_output_user = &allocation;
    }
    std::vector<std::vector<char>> inputs_before;
    for (const auto& each : memory) inputs_before.push_back(*each);
    Structs<fuseloom_arguments> given_arguments(choices_.struct_size(sizeof arguments), 1, &arguments);
    heap_.allowed = choices_.one_in(8) ? choices_.byte() % 4 : INT32_MAX;
    const int32_t status = called([&](fuseloom_error* error) { return api_->run(instance, choices_.one_in(64) ? nullptr : given_arguments.data(), error); });
    heap_.allowed = INT32_MAX;
    if (status != FUSELOOM_OK) {
      if (status == FUSELOOM_NO_MEMORY || status == FUSELOOM_CHECK_FAILED) return;   // it had begun
      EXPECT(given_outputs.bytes() == outputs_before);
      for (const std::unique_ptr<AlignedMemory>& each : results) EXPECT(each->untouched());
      EXPECT(arena.untouched());
      for (size_t i = 0; i < memory.size(); ++i) EXPECT(*memory[i] == inputs_before[i]);
      return;
    }

    // 4. It succeeded, so that it was a right one: the same again, with nothing out of the ordinary, gives the same bits.
    std::vector<fuseloom_input> plain;
    std::vector<std::unique_ptr<std::vector<char>>> rows;
    for (int64_t i = 0; i < count; ++i) {
      fuseloom_input input = given.at(static_cast<size_t>(i));
      input.struct_size = sizeof input;
      int64_t elements = 1;
      for (int32_t d = 0; d < input.rank; ++d) elements *= input.sizes[d];
      const int64_t bytes = input.dtype == FUSELOOM_F32 ? 4 : 8;
      std::vector<char>& data = *rows.emplace_back(std::make_unique<std::vector<char>>(static_cast<size_t>(elements * bytes)));
      for (int64_t e = 0; e < elements; ++e) {
        int64_t at = e, rest = e;
        if (input.strides != nullptr) {
          at = 0;
          for (int32_t d = input.rank; d-- > 0;) {
            at += rest % input.sizes[d] * input.strides[d];
            rest /= input.sizes[d];
          }
        }
        // As it was before the call: a result may lie over it.
        const char* from = static_cast<const char*>(input.data) + at * bytes;
        for (size_t b = 0; b < memory.size(); ++b) {
          const std::ptrdiff_t place = from - memory[b]->data();
          if (place >= 0 && place < static_cast<std::ptrdiff_t>(memory[b]->size())) from = inputs_before[b].data() + place;
        }
        std::memcpy(&data[static_cast<size_t>(e * bytes)], from, static_cast<size_t>(bytes));
      }
      input.data = data.data();
      input.strides = nullptr;
      plain.push_back(input);
    }
    for (int64_t i = 0; i < output_count; ++i) {
      const fuseloom_output got = given_outputs.at(static_cast<size_t>(i));
      fuseloom_output again = {};
      again.struct_size = sizeof again;
      again.name = got.name;
      if (got.name == nullptr) again.name = output_names[i];
      std::vector<char> room(got.bytes + 1);
      again.data = room.data();
      again.capacity = got.bytes;
      fuseloom_arguments simple = {};
      simple.struct_size = sizeof simple;
      simple.input_count = count;
      simple.inputs = plain.data();
      simple.output_count = 1;
      simple.outputs = &again;
      EXPECT(api_->run(instance, &simple, nullptr) == FUSELOOM_OK);
      EXPECT(again.bytes == got.bytes && again.rank == got.rank && std::equal(again.sizes, again.sizes + again.rank, got.sizes));
      EXPECT(got.bytes == 0 || std::memcmp(room.data(), got.data, got.bytes) == 0);
    }
  }

 private:
  // With room for words, with too little, or with none.
  template <class Function>
  int32_t called(const Function& function) {
    fuseloom_error error = {};
    const size_t size = choices_.struct_size(sizeof error);
    Structs<fuseloom_error> given(size, 1, &error);
    fuseloom_error* const pointer = choices_.one_in(16) ? nullptr : given.data();
    const int32_t status = function(pointer);
    const bool usable = pointer != nullptr && size >= sizeof error && size <= kLargestStruct;
    if (usable) error = given.at(0);
    expect_words(status, error, usable);
    return status;
  }

  Choices& choices_;
  const fuseloom_api* const api_ = abi_model_model(FUSELOOM_ABI_VERSION);
  AlignedMemory weights_;
  size_t weights_bytes_ = 0;
  Heap heap_;
  std::vector<fuseloom_instance*> instances_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<char> weights = weights_of_model();
  Choices choices(data, size);
  EXPECT(abi_model_model(0) == nullptr && abi_model_model(FUSELOOM_ABI_VERSION + 1) == nullptr);
  Session session(choices, weights);
  session.create();
  for (int step = 0; step < 16 && !choices.done(); ++step) {
    const uint8_t what = choices.byte() % 8;
    if (what == 1) {
      session.create();
    } else if (what == 2) {
      session.destroy();
    } else {
      session.call();
    }
  }
  return 0;
}
