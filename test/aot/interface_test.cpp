// The C interface: bad input to every entry point gets a status and words, and nothing is written (R58); the rest of its
// promises: caller's arena and memory, names in any order, older callers, threads, fork, loading and unloading.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "aot_testing.h"
#include "path/path_testing.h"

namespace fuseloom::test {
namespace {

// Two inputs and two outputs with memory behind them, filled with a pattern; broken by each case in one place.
struct Call {
  fuseloom_instance* instance = nullptr;
  alignas(64) float x[6] = {1, 2, 3, 4, 5, 6};
  alignas(64) int64_t k[3] = {1, 2, 3};
  alignas(64) unsigned char y[64], z[64], arena[65536];
  int64_t x_sizes[2] = {2, 3}, k_sizes[1] = {3};
  fuseloom_input inputs[2];
  fuseloom_output outputs[2];
  fuseloom_arguments arguments;
  fuseloom_error error;
  size_t bytes = 12345;

  explicit Call(fuseloom_instance* with) : instance(with) {
    std::memset(y, 0xAB, sizeof y);
    std::memset(z, 0xAB, sizeof z);
    std::memset(arena, 0xAB, sizeof arena);
    inputs[0] = {sizeof(fuseloom_input), "x", x, FUSELOOM_F32, 2, x_sizes, nullptr};
    inputs[1] = {sizeof(fuseloom_input), "k", k, FUSELOOM_I64, 1, k_sizes, nullptr};
    std::memset(outputs, 0, sizeof outputs);
    outputs[0].struct_size = outputs[1].struct_size = sizeof(fuseloom_output);
    outputs[0].data = y;
    outputs[1].data = z;
    outputs[0].capacity = outputs[1].capacity = sizeof y;
    std::memset(&arguments, 0, sizeof arguments);
    arguments.struct_size = sizeof arguments;
    arguments.inputs = inputs;
    arguments.input_count = 2;
    arguments.outputs = outputs;
    arguments.output_count = 2;
    std::memset(&error, 0, sizeof error);
    error.struct_size = sizeof error;
  }
  bool untouched() const {
    const auto filled = [](const unsigned char* memory, size_t count) { return std::all_of(memory, memory + count, [](unsigned char c) { return c == 0xAB; }); };
    return filled(y, sizeof y) && filled(z, sizeof z) && filled(arena, sizeof arena) && outputs[0].rank == 0 && outputs[0].bytes == 0 && outputs[1].bytes == 0 && bytes == 12345;
  }
};

class Interface : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = new CompiledModel(compile_library(parse(R"(graph two(%x: f32[n, m], %k: i64[m]) symbols {n in 0 .. 100} {
      %e = exp(%x)
      %s = reduce_sum(%e) {axes = [0], keepdims = 0}
      %y = softmax(%x) {axis = 1}
      %c = cast(%k) {to = :f32}
      %z = add(%s, %c)
      return %y, %z
    })")));
  }
  static void TearDownTestSuite() { delete model_; }
  const fuseloom_api* api() const { return model_->model().api(); }
  static CompiledModel* model_;
};
CompiledModel* Interface::model_ = nullptr;

struct BadCall {
  const char* name;
  int32_t status;
  std::function<void(Call&)> spoil;
  const char* words;
};

// What is wrong with inputs, for the three functions that take them.
std::vector<BadCall> bad_inputs() {
  return {{"no instance", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.instance = nullptr; }, "instance"},
          {"another thing as instance", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.instance = reinterpret_cast<fuseloom_instance*>(c.arena); }, "instance"},
          {"fewer than no inputs", FUSELOOM_BAD_NAME, [](Call& c) { c.arguments.input_count = -1; }, "-1 inputs, the model has 2"},
          {"too many inputs", FUSELOOM_BAD_NAME, [](Call& c) { c.arguments.input_count = 3; }, "3 inputs"},
          {"too few inputs", FUSELOOM_BAD_NAME, [](Call& c) { c.arguments.input_count = 1; }, "'k' is missing"},
          {"inputs null", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.arguments.inputs = nullptr; }, "null"},
          {"size of a struct 0", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.inputs[0].struct_size = 0; }, "struct_size"},
          {"size of a struct huge", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.inputs[0].struct_size = size_t{1} << 40; }, "struct_size"},
          {"two sizes of a struct", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.inputs[1].struct_size += 8; }, "struct_size"},
          {"unknown name", FUSELOOM_BAD_NAME, [](Call& c) { c.inputs[0].name = "nobody"; }, "'nobody'"},
          {"a name twice", FUSELOOM_BAD_NAME, [](Call& c) { c.inputs[1] = c.inputs[0]; }, "'x' is given twice"},
          {"dtype", FUSELOOM_BAD_DTYPE, [](Call& c) { c.inputs[0].dtype = FUSELOOM_F64; }, "expected f32, got f64"},
          {"no dtype", FUSELOOM_BAD_DTYPE, [](Call& c) { c.inputs[0].dtype = 77; }, "unknown"},
          {"negative dtype", FUSELOOM_BAD_DTYPE, [](Call& c) { c.inputs[0].dtype = -1; }, "unknown"},
          {"rank", FUSELOOM_BAD_RANK, [](Call& c) { c.inputs[0].rank = 1; }, "expected rank 2, got 1"},
          {"huge rank", FUSELOOM_BAD_RANK, [](Call& c) { c.inputs[0].rank = 1 << 30; }, "rank"},
          {"sizes null", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.inputs[0].sizes = nullptr; }, "sizes"},
          {"negative size", FUSELOOM_BAD_SIZE, [](Call& c) { c.x_sizes[0] = -2; }, "'x', dimension 0"},
          {"sizes that overflow", FUSELOOM_BAD_SIZE, [](Call& c) { c.x_sizes[0] = c.x_sizes[1] = int64_t{1} << 40; }, "too many elements"},
          {"sizes that do not agree", FUSELOOM_BAD_SIZE, [](Call& c) { c.k_sizes[0] = 2; }, "'k', dimension 0 (m): expected 3, got 2"},
          {"size out of range", FUSELOOM_BAD_SIZE, [](Call& c) { c.x_sizes[0] = 101; }, "n = 101, expected 0 .. 100"}};
}

TEST_F(Interface, BadInputsAreRefusedEverywhere) {  // R58
  const Instance instance = model_->model().instance({.threads = 2});
  for (const BadCall& bad : bad_inputs()) {
    using Entry = std::function<int32_t(Call&, fuseloom_error*)>;
    const std::pair<const char*, Entry> entries[] = {
        {"run", [&](Call& c, fuseloom_error* e) { return api()->run(c.instance, &c.arguments, e); }},
        {"arena_bytes", [&](Call& c, fuseloom_error* e) { return api()->arena_bytes(c.instance, c.arguments.inputs, c.arguments.input_count, &c.bytes, e); }},
        {"output_sizes", [&](Call& c, fuseloom_error* e) { return api()->output_sizes(c.instance, c.arguments.inputs, c.arguments.input_count, c.outputs, 2, e); }}};
    for (const auto& [name, entry] : entries) {
      SCOPED_TRACE(fmt::format("{}: {}", name, bad.name));
      Call call(instance.get());
      bad.spoil(call);
      EXPECT_EQ(entry(call, &call.error), bad.status);
      EXPECT_EQ(call.error.status, bad.status);
      EXPECT_NE(std::string(call.error.message).find(bad.words), std::string::npos) << call.error.message;
      EXPECT_TRUE(call.untouched());
      EXPECT_EQ(entry(call, nullptr), bad.status);   // the words are optional
      EXPECT_TRUE(call.untouched());
    }
  }
}

TEST_F(Interface, BadArgumentsOfARunAreRefused) {  // R58
  const Instance instance = model_->model().instance({.threads = 2});
  const std::vector<BadCall> cases = {
      {"size of arguments", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.arguments.struct_size = 3; }, "arguments: struct_size"},
      {"data null", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.inputs[0].data = nullptr; }, "'x': data"},
      {"too many outputs", FUSELOOM_BAD_NAME, [](Call& c) { c.arguments.output_count = 3; }, "3 outputs"},
      {"fewer than no outputs", FUSELOOM_BAD_NAME, [](Call& c) { c.arguments.output_count = -1; }, "-1 outputs"},
      {"outputs null", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.arguments.outputs = nullptr; }, "null"},
      {"unknown output", FUSELOOM_BAD_NAME, [](Call& c) { c.outputs[0].name = "w"; }, "'w'"},
      {"an output twice", FUSELOOM_BAD_NAME, [](Call& c) { c.outputs[0].name = c.outputs[1].name = "y"; }, "twice"},
      {"size of an output's struct", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.outputs[0].struct_size = 8; }, "struct_size"},
      {"output data null", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.outputs[1].data = nullptr; }, "'z'"},
      {"too small an output", FUSELOOM_TOO_SMALL, [](Call& c) { c.outputs[0].capacity = 23; }, "needs 24 bytes, 23 are given"},
      {"outputs over each other", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.outputs[1].data = c.y + 20; }, "lie over each other"},
      {"arena askew", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.arguments.arena = c.arena + 8, c.arguments.arena_bytes = 4096; }, "aligned"},
      {"arena too small", FUSELOOM_TOO_SMALL, [](Call& c) { c.arguments.arena = c.arena, c.arguments.arena_bytes = 8; }, "arena: needs"},
      {"output over the arena", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.arguments.arena = c.arena, c.arguments.arena_bytes = sizeof c.arena, c.outputs[0].data = c.arena + 64; }, "over the arena"},
      {"input over the arena", FUSELOOM_BAD_ARGUMENT, [](Call& c) { c.arguments.arena = c.arena, c.arguments.arena_bytes = sizeof c.arena, c.inputs[0].data = c.arena + 64; }, "over the arena"}};
  for (const BadCall& bad : cases) {
    SCOPED_TRACE(bad.name);
    Call call(instance.get());
    bad.spoil(call);
    EXPECT_EQ(api()->run(call.instance, &call.arguments, &call.error), bad.status) << call.error.message;
    EXPECT_NE(std::string(call.error.message).find(bad.words), std::string::npos) << call.error.message;
    EXPECT_TRUE(call.untouched());
  }
  Call call(instance.get());
  EXPECT_EQ(api()->run(call.instance, nullptr, &call.error), FUSELOOM_BAD_ARGUMENT);
  EXPECT_EQ(api()->arena_bytes(call.instance, call.inputs, 2, nullptr, &call.error), FUSELOOM_BAD_ARGUMENT);
  call.error.struct_size = 4;   // of another interface: nothing is written to it
  call.error.status = 99;
  EXPECT_EQ(api()->run(call.instance, nullptr, &call.error), FUSELOOM_BAD_ARGUMENT);
  EXPECT_EQ(call.error.status, 99);
  // After all that, a good call.
  Call good(instance.get());
  EXPECT_EQ(api()->run(good.instance, &good.arguments, &good.error), FUSELOOM_OK) << good.error.message;
  EXPECT_EQ(good.outputs[0].bytes, 24u);
}

TEST_F(Interface, BadOptionsAreRefused) {  // R58
  const auto refused = [&](const std::function<void(fuseloom_options&)>& spoil, int32_t status, const char* words) {
    fuseloom_options options = {};
    options.struct_size = sizeof options;
    spoil(options);
    fuseloom_error error = {};
    error.struct_size = sizeof error;
    fuseloom_instance* const before = reinterpret_cast<fuseloom_instance*>(0x1234);
    fuseloom_instance* made = before;
    EXPECT_EQ(api()->create(&options, &made, &error), status) << words;
    EXPECT_NE(std::string(error.message).find(words), std::string::npos) << error.message;
    EXPECT_EQ(made, before);
  };
  char other[4096] = {};
  refused([](fuseloom_options& o) { o.struct_size = 1; }, FUSELOOM_BAD_ARGUMENT, "struct_size");
  refused([](fuseloom_options& o) { o.threads = -1; }, FUSELOOM_BAD_ARGUMENT, "threads");
  refused([](fuseloom_options& o) { o.threads = 1 << 20; }, FUSELOOM_BAD_ARGUMENT, "threads");
  refused([](fuseloom_options& o) { o.isa = 9; }, FUSELOOM_BAD_ARGUMENT, "isa");
  refused([](fuseloom_options& o) { o.allocate = [](void*, size_t, size_t) -> void* { return nullptr; }; }, FUSELOOM_BAD_ARGUMENT, "allocate and release");
  refused([&](fuseloom_options& o) { o.share_with = reinterpret_cast<fuseloom_instance*>(other); }, FUSELOOM_BAD_ARGUMENT, "instance");
  refused([](fuseloom_options& o) {
    o.allocate = [](void*, size_t, size_t) -> void* { return nullptr; };
    o.release = [](void*, void*, size_t) {};
  }, FUSELOOM_NO_MEMORY, "cannot allocate");
  EXPECT_EQ(api()->create(nullptr, nullptr, nullptr), FUSELOOM_BAD_ARGUMENT);
  api()->destroy(nullptr);
  EXPECT_EQ(api()->isa(nullptr), 0);
  const auto entry = reinterpret_cast<fuseloom_model_function>(dlsym(dlopen(model_->path().c_str(), RTLD_NOW | RTLD_NOLOAD), "fuseloom_model"));
  EXPECT_EQ(entry(0), nullptr);
  EXPECT_EQ(entry(FUSELOOM_ABI_VERSION + 1), nullptr);
}

TEST_F(Interface, WeightsOfAnotherModelAreRefused) {
  std::string values;
  for (int i = 0; i < 64; ++i) values += fmt::format("{}{}.5", i == 0 ? "" : ", ", i);
  const auto compiled = [&](const std::string& first) {
    return compile_library(parse(fmt::format("graph w(%x: f32[n, 65]) {{\n  %w: f32[64] = constant() {{value = f32[64] {{{}}}}}\n  %v: f32[1] = constant() {{value = f32[1] {{{}}}}}\n"
                                             "  %c = concat(%w, %v) {{axis = 0}}\n  %y = add(%x, %c)\n  return %y\n}}", values, first)), {.weights = compile::WeightsPlace::File});
  };
  const compile::AotLibrary one = compiled("1.0"), two = compiled("2.0");
  ASSERT_FALSE(one.weights.empty());
  const CompiledModel model(one);
  const build::TemporaryDirectory folder;
  const auto status_of = [&](const std::vector<std::byte>& bytes) {
    build::write_file(folder.path() + "/w", bytes);
    InstanceOptions options;
    options.weights_path = folder.path() + "/w";
    try {
      model.model().instance(options);
      return static_cast<int>(FUSELOOM_OK);
    } catch (const ModelError& error) {
      EXPECT_NE(std::string(error.what()), "");
      return error.status();
    }
  };
  EXPECT_EQ(status_of(one.weights), FUSELOOM_OK);
  EXPECT_EQ(status_of(two.weights), FUSELOOM_BAD_WEIGHTS);
  EXPECT_EQ(status_of({}), FUSELOOM_BAD_WEIGHTS);
  std::vector<std::byte> cut(one.weights.begin(), one.weights.end() - 1);
  EXPECT_EQ(status_of(cut), FUSELOOM_BAD_WEIGHTS);
  EXPECT_THROW(model.model().instance({.weights_path = "/no/such/file"}), ModelError);
  EXPECT_THROW(model.model().instance(), ModelError);
}

TEST_F(Interface, CallersMemoryNamesInAnyOrderAndNothingAllocated) {
  static int allocations;
  fuseloom_options options = {};
  options.struct_size = sizeof options;
  options.threads = 1;
  options.allocate = [](void*, size_t bytes, size_t alignment) {
    ++allocations;
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  };
  options.release = [](void*, void* memory, size_t) { std::free(memory); };
  fuseloom_instance* instance = nullptr;
  ASSERT_EQ(api()->create(&options, &instance, nullptr), FUSELOOM_OK);
  Call by_position(instance), by_name(instance);
  by_position.inputs[0].name = by_position.inputs[1].name = nullptr;
  std::swap(by_name.inputs[0], by_name.inputs[1]);
  by_name.outputs[0].name = "z";
  by_name.outputs[1].name = "y";
  ASSERT_EQ(api()->arena_bytes(instance, by_name.inputs, 2, &by_name.bytes, nullptr), FUSELOOM_OK);
  by_name.arguments.arena = by_name.arena;
  by_name.arguments.arena_bytes = by_name.bytes;
  ASSERT_EQ(api()->run(instance, &by_position.arguments, nullptr), FUSELOOM_OK);
  const int before = allocations;
  ASSERT_EQ(api()->run(instance, &by_position.arguments, nullptr), FUSELOOM_OK);
  ASSERT_EQ(api()->run(instance, &by_name.arguments, &by_name.error), FUSELOOM_OK) << by_name.error.message;
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(std::memcmp(by_position.y, by_name.z, 24), 0);
  EXPECT_EQ(std::memcmp(by_position.z, by_name.y, 12), 0);
  EXPECT_TRUE(std::all_of(by_name.arena + by_name.bytes, by_name.arena + sizeof by_name.arena, [](unsigned char c) { return c == 0xAB; }));
  // A result over its input is computed aside.
  Call over(instance);
  over.outputs[0].data = over.x;
  over.outputs[0].capacity = sizeof over.x;
  ASSERT_EQ(api()->run(instance, &over.arguments, nullptr), FUSELOOM_OK);
  EXPECT_EQ(std::memcmp(over.x, by_position.y, 24), 0);
  EXPECT_EQ(std::memcmp(over.z, by_position.z, 12), 0);
  api()->destroy(instance);
}

TEST_F(Interface, SixteenThreadsOnOneInstanceAndAChildProcess) {
  const Instance instance = model_->model().instance({.threads = 3});
  const auto right = [&](int64_t rows) {
    const Tensor x = numbers(DType::F32, {rows, 700}, static_cast<uint64_t>(rows)), k = Tensor(DType::I64, {700});
    const Tensor inputs[] = {x, k};
    const std::vector<Result> first = instance.run(arguments_of(inputs)), second = instance.run(arguments_of(inputs));
    return first[0].bytes == static_cast<size_t>(rows) * 2800 && std::memcmp(first[0].data(), second[0].data(), first[0].bytes) == 0;
  };
  std::vector<std::thread> threads;
  std::vector<char> good(16);
  for (size_t t = 0; t < 16; ++t) threads.emplace_back([&, t] {
    good[t] = 1;
    for (int64_t i = 0; i < 20; ++i) good[t] = static_cast<char>(good[t] & static_cast<char>(right(static_cast<int64_t>(t) * 6 + i % 5)));
  });
  for (std::thread& thread : threads) thread.join();
  for (const char each : good) EXPECT_EQ(each, 1);
  const pid_t child = fork();
  if (child == 0) _exit(right(90) ? 0 : 1);   // the parent's threads do not exist here
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(right(91));
}

TEST_F(Interface, NeedsTheCLibraryOnlyAndExportsTwoFunctions) {
  const build::TemporaryDirectory folder;
  const std::string command = fmt::format("(readelf -d {0} | grep NEEDED; nm -D --defined-only {0}) >{1}/out", model_->path(), folder.path());
  ASSERT_EQ(std::system(command.c_str()), 0);
  const std::optional<build::Bytes> out = build::read_file(folder.path() + "/out");
  const std::string text(reinterpret_cast<const char*>(out->data()), out->size());
  for (size_t at = text.find('['); at != std::string::npos; at = text.find('[', at + 1)) {
    const std::string library = text.substr(at + 1, text.find(']', at) - at - 1);
    EXPECT_TRUE(library == "libc.so.6" || library == "libm.so.6" || library.starts_with("ld-linux")) << library;
  }
  size_t exported = 0;
  for (size_t at = text.find(" T "); at != std::string::npos; at = text.find(" T ", at + 1)) ++exported;
  for (size_t at = text.find(" W "); at != std::string::npos; at = text.find(" W ", at + 1)) ++exported;
  EXPECT_EQ(exported, 2u) << text;
}

}  // namespace
}  // namespace fuseloom::test
