// C++17 over fuseloom/abi.h: compiled models as values that clean up after themselves. Header-only; needs nothing else of
// fuseloom.
//
//   fuseloom::Model model("silero_vad.so");                       or fuseloom::Model(silero_vad_model(FUSELOOM_ABI_VERSION))
//   fuseloom::Instance instance = model.instance();
//   std::vector<float> samples(512), ...;
//   std::vector<fuseloom::Result> results = instance.run({{"input", samples.data(), {1, 512}}, ...});
//   results[0].as<float>()[0]
//
// Errors are thrown as fuseloom::ModelError. Any number of threads may use an Instance at a time.
#ifndef FUSELOOM_MODEL_HPP
#define FUSELOOM_MODEL_HPP

#include <dlfcn.h>

#include <complex>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fuseloom/abi.h"

namespace fuseloom {

class ModelError : public std::runtime_error {
 public:
  ModelError(int status, const std::string& message) : std::runtime_error(message), status_(status) {}
  int status() const { return status_; }   // a fuseloom_status

 private:
  int status_;
};

// The fuseloom_dtype of a C++ type. f16 and bf16 have none: name the dtype.
template <class T> struct DtypeOf;
template <> struct DtypeOf<bool> { static constexpr int32_t value = FUSELOOM_BOOL; };
template <> struct DtypeOf<int8_t> { static constexpr int32_t value = FUSELOOM_I8; };
template <> struct DtypeOf<int16_t> { static constexpr int32_t value = FUSELOOM_I16; };
template <> struct DtypeOf<int32_t> { static constexpr int32_t value = FUSELOOM_I32; };
template <> struct DtypeOf<int64_t> { static constexpr int32_t value = FUSELOOM_I64; };
template <> struct DtypeOf<uint8_t> { static constexpr int32_t value = FUSELOOM_U8; };
template <> struct DtypeOf<uint16_t> { static constexpr int32_t value = FUSELOOM_U16; };
template <> struct DtypeOf<uint32_t> { static constexpr int32_t value = FUSELOOM_U32; };
template <> struct DtypeOf<uint64_t> { static constexpr int32_t value = FUSELOOM_U64; };
template <> struct DtypeOf<float> { static constexpr int32_t value = FUSELOOM_F32; };
template <> struct DtypeOf<double> { static constexpr int32_t value = FUSELOOM_F64; };
template <> struct DtypeOf<std::complex<float>> { static constexpr int32_t value = FUSELOOM_C64; };
template <> struct DtypeOf<std::complex<double>> { static constexpr int32_t value = FUSELOOM_C128; };

// An input: borrowed memory. Without a name, inputs go by position.
struct Argument {
  std::string name;
  const void* data = nullptr;
  int32_t dtype = FUSELOOM_F32;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;   // in elements; empty: row-major

  template <class T>
  Argument(std::string name_, const T* data_, std::vector<int64_t> sizes_, std::vector<int64_t> strides_ = {})
      : name(std::move(name_)), data(data_), dtype(DtypeOf<T>::value), sizes(std::move(sizes_)), strides(std::move(strides_)) {}
  Argument(std::string name_, int32_t dtype_, const void* data_, std::vector<int64_t> sizes_, std::vector<int64_t> strides_ = {})
      : name(std::move(name_)), data(data_), dtype(dtype_), sizes(std::move(sizes_)), strides(std::move(strides_)) {}
};

// An output in memory of its own, 64-byte aligned.
class Result {
 public:
  std::string name;
  int32_t dtype = FUSELOOM_F32;
  std::vector<int64_t> sizes;
  size_t bytes = 0;

  void* data() { return memory_.get(); }
  const void* data() const { return memory_.get(); }
  template <class T> T* as() { check<T>(); return static_cast<T*>(memory_.get()); }
  template <class T> const T* as() const { check<T>(); return static_cast<const T*>(memory_.get()); }

 private:
  friend class Instance;
  template <class T> void check() const {
    if (DtypeOf<T>::value != dtype) throw ModelError(FUSELOOM_BAD_DTYPE, "result '" + name + "' has another element type");
  }
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
};

struct InstanceOptions {
  int32_t threads = 0;            // 0: as many as there are cores
  int32_t isa = FUSELOOM_ISA_BEST;
  std::string weights_path;       // where the weights are not part of the library
};

class Model;

class Instance {
 public:
  // In the order of the model's outputs.
  std::vector<Result> run(const std::vector<Argument>& arguments) const {
    std::vector<fuseloom_input> inputs = inputs_of(arguments);
    const int64_t count = api_->info->output_count;
    std::vector<fuseloom_output> outputs(static_cast<size_t>(count));
    for (fuseloom_output& output : outputs) output.struct_size = sizeof output;
    std::vector<Result> results(static_cast<size_t>(count));
    fuseloom_arguments call = {};
    call.struct_size = sizeof call;
    call.input_count = static_cast<int64_t>(inputs.size());
    call.inputs = inputs.data();
    call.output_count = count;
    call.outputs = outputs.data();
    call.allocate_output = [](void* user, int64_t output, size_t bytes) -> void* {
      void* const memory = std::aligned_alloc(64, (bytes + 64) / 64 * 64);
      (*static_cast<std::vector<Result>*>(user))[static_cast<size_t>(output)].memory_.reset(memory);
      return memory;
    };
    call.allocate_output_user = &results;
    fuseloom_error error = {};
    error.struct_size = sizeof error;
    check(api_->run(handle_.get(), &call, &error), error);
    for (size_t i = 0; i < results.size(); ++i) {
      results[i].name = api_->info->outputs[i].name;
      results[i].dtype = outputs[i].dtype;
      results[i].sizes.assign(outputs[i].sizes, outputs[i].sizes + outputs[i].rank);
      results[i].bytes = outputs[i].bytes;
    }
    return results;
  }

  // Bytes of arena that a run with inputs of these sizes needs. Data is not looked at.
  size_t arena_bytes(const std::vector<Argument>& arguments) const {
    const std::vector<fuseloom_input> inputs = inputs_of(arguments);
    size_t bytes = 0;
    fuseloom_error error = {};
    error.struct_size = sizeof error;
    check(api_->arena_bytes(handle_.get(), inputs.data(), static_cast<int64_t>(inputs.size()), &bytes, &error), error);
    return bytes;
  }

  int32_t isa() const { return api_->isa(handle_.get()); }
  // For calls of the C interface: with memory of your own, nothing is allocated.
  fuseloom_instance* get() const { return handle_.get(); }
  const fuseloom_api* api() const { return api_; }

 private:
  friend class Model;
  Instance(std::shared_ptr<void> library, const fuseloom_api* api, fuseloom_instance* handle)
      : library_(std::move(library)), api_(api), handle_(handle, api->destroy) {}

  static std::vector<fuseloom_input> inputs_of(const std::vector<Argument>& arguments) {
    std::vector<fuseloom_input> inputs;
    for (const Argument& argument : arguments) {
      fuseloom_input input = {};
      input.struct_size = sizeof input;
      input.name = argument.name.empty() ? nullptr : argument.name.c_str();
      input.data = argument.data;
      input.dtype = argument.dtype;
      input.rank = static_cast<int32_t>(argument.sizes.size());
      input.sizes = argument.sizes.data();
      input.strides = argument.strides.empty() ? nullptr : argument.strides.data();
      inputs.push_back(input);
    }
    return inputs;
  }
  static void check(int32_t status, const fuseloom_error& error) {
    if (status != FUSELOOM_OK) throw ModelError(status, error.message);
  }

  std::shared_ptr<void> library_;   // outlives the handle
  const fuseloom_api* api_;
  std::unique_ptr<fuseloom_instance, void (*)(fuseloom_instance*)> handle_;
};

class Model {
 public:
  // Loads a library; it stays as long as the model or an instance does.
  explicit Model(const std::string& path) {
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw ModelError(FUSELOOM_BAD_ARGUMENT, dlerror());
    library_ = std::shared_ptr<void>(handle, dlclose);
    const auto entry = reinterpret_cast<fuseloom_model_function>(dlsym(handle, "fuseloom_model"));
    if (entry == nullptr) throw ModelError(FUSELOOM_BAD_VERSION, path + ": not a compiled model: it has no fuseloom_model()");
    set(entry(FUSELOOM_ABI_VERSION), path);
  }
  // A model that is linked in: NAME_model(FUSELOOM_ABI_VERSION).
  explicit Model(const fuseloom_api* api) { set(api, "model"); }

  const fuseloom_model_info& info() const { return *api_->info; }
  const fuseloom_api* api() const { return api_; }

  Instance instance(const InstanceOptions& options = {}) const { return make(options, nullptr); }
  // With the weights of another instance, and its instruction set.
  Instance instance(const InstanceOptions& options, const Instance& share_with) const { return make(options, share_with.get()); }

 private:
  void set(const fuseloom_api* api, const std::string& what) {
    if (api == nullptr || api->abi_version < 1) throw ModelError(FUSELOOM_BAD_VERSION, what + ": compiled for an older interface than this program's");
    api_ = api;
  }
  Instance make(const InstanceOptions& options, fuseloom_instance* share_with) const {
    fuseloom_options given = {};
    given.struct_size = sizeof given;
    given.threads = options.threads;
    given.isa = options.isa;
    given.weights_path = options.weights_path.empty() ? nullptr : options.weights_path.c_str();
    given.share_with = share_with;
    fuseloom_instance* handle = nullptr;
    fuseloom_error error = {};
    error.struct_size = sizeof error;
    const int32_t status = api_->create(&given, &handle, &error);
    if (status != FUSELOOM_OK) throw ModelError(status, error.message);
    return Instance(library_, api_, handle);
  }

  std::shared_ptr<void> library_;
  const fuseloom_api* api_ = nullptr;
};

}  // namespace fuseloom

#endif
