// CUDA text, compiled for the host: every primitive on every type, whole kernels against the interpreter of the kernel IR,
// faults that must be found, and the text itself.
#include "emit/cuda.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "compiled.h"
#include "interpreter.h"
#include "primitive_cases.h"

namespace fuseloom::emit {
namespace {

using kernel::Binding;
using kernel::Kernel;

std::string cuda_text(const std::vector<Kernel>& kernels) {
  std::vector<const Kernel*> pointers;
  for (const Kernel& kernel : kernels) pointers.push_back(&kernel);
  return to_cuda(pointers);
}

// Compiled for this machine, by the first compiler there is.
class CudaOnHost {
 public:
  explicit CudaOnHost(const std::string& text, const std::string& optimize = "-O1")
      : library_(cuda_host_prelude() + text, {.compiler = has_program("g++") ? "g++" : "clang++", .march = "native", .target = {}}, optimize) {}
  bool loaded() const { return library_.loaded(); }
  // The grid that the kernel's loops ask for. `pointers`: of the Global buffers.
  void run(const Kernel& kernel, const std::vector<void*>& pointers, const std::vector<int64_t>& sizes) const {
    std::vector<uint64_t> words;
    for (void* pointer : pointers) words.push_back(reinterpret_cast<uint64_t>(pointer));
    for (const int64_t size : sizes) words.push_back(static_cast<uint64_t>(size));
    std::map<std::string, int64_t> symbols;
    for (size_t i = 0; i < sizes.size(); ++i) symbols[kernel.symbols[i]] = sizes[i];
    std::array<uint32_t, 3> grid = {1, 1, 1}, block = {1, 1, 1};
    const std::array<int32_t, 3> threads = block_of(kernel);
    for (size_t d = 0; d < 3; ++d) block[d] = static_cast<uint32_t>(threads[d]);
    find_grid(kernel.body, symbols, grid);
    using Entry = void (*)(const uint64_t*, const uint32_t*, const uint32_t*, const uint32_t*, uint32_t);
    const auto entry = reinterpret_cast<Entry>(reinterpret_cast<void*>(library_.function(host_entry_name(kernel.name))));
    ASSERT_NE(entry, nullptr) << kernel.name;
    const std::array<uint32_t, 3> cluster = {1, 1, 1};
    entry(words.data(), grid.data(), block.data(), cluster.data(), static_cast<uint32_t>(sym::evaluate(shared_bytes(kernel), symbols)));
  }

 private:
  static void find_grid(const kernel::Body& body, const std::map<std::string, int64_t>& symbols, std::array<uint32_t, 3>& grid) {
    for (const kernel::Statement& statement : body) {
      const auto* loop = std::get_if<kernel::Loop>(&statement.what);
      if (loop == nullptr) continue;
      const int d = loop->binding == Binding::GridX ? 0 : loop->binding == Binding::GridY ? 1 : loop->binding == Binding::GridZ ? 2 : -1;
      if (d < 0) continue;
      grid[static_cast<size_t>(d)] = static_cast<uint32_t>(sym::evaluate(loop->end, symbols));
      find_grid(loop->body, symbols, grid);
    }
  }
  Library library_;
};

// Memory as a device's: 16-byte aligned; what lies behind the last 16 bytes faults, and what lies in them must not change.
class DeviceMemory {
 public:
  explicit DeviceMemory(const Tensor& tensor) : bytes_(static_cast<size_t>(tensor.bytes())), memory_((bytes_ + 15) / 16 * 16) {
    std::memset(memory_.data(), 0x5a, (bytes_ + 15) / 16 * 16);
    std::memcpy(memory_.data(), tensor.data(), bytes_);
  }
  void* data() const { return memory_.data(); }
  bool intact() const {
    for (size_t i = bytes_; i % 16 != 0; ++i)
      if (static_cast<unsigned char*>(memory_.data())[i] != 0x5a) return false;
    return true;
  }

 private:
  size_t bytes_;
  GuardedBuffer memory_;
};

// ---- primitives ------------------------------------------------------------------------------------------------------

// y[i] = op(x[i], ...): blocks of 32 threads with `lanes` elements each; behind the last whole vector, one by one.
Kernel make_kernel(const Case& c, int lanes) {
  Kernel k;
  k.name = "k_" + c.name;
  k.symbols = {"n"};
  k.facts.symbols["n"] = {.low = 0, .high = 1 << 20, .divisor = lanes};
  const sym::Expr n = sym::Expr::symbol("n"), base = sym::Expr::symbol("base");
  const sym::Expr index = base + sym::Expr::symbol("v");
  kernel::Loop vector{.axis = "v", .begin = 0, .end = lanes, .binding = Binding::Vector, .width = lanes};
  kernel::Apply apply{.op = c.op, .args = {}, .attrs = c.attrs};
  apply.attrs.erase("to");
  const bool conversion = c.op->name == "cast" || c.op->name == "bitcast";
  const auto convert = [&](kernel::ScalarId value, DType to) {
    const kernel::ScalarId result = k.add_scalar(to);
    vector.body.push_back({kernel::Let{result, kernel::Apply{.op = &op::standard_ops().at("cast"), .args = {value}}}});
    return result;
  };
  for (size_t input = 0; input < c.inputs.size(); ++input) {
    const DType dtype = c.inputs[input];
    const kernel::BufferId buffer = k.add_buffer({.name = "x" + std::to_string(input), .dtype = dtype, .access = kernel::Access::Read, .size = n});
    kernel::ScalarId value = k.add_scalar(dtype);
    vector.body.push_back({kernel::Let{value, kernel::Load{.buffer = buffer, .index = index}}});
    if (compute_dtype(dtype) != dtype && !conversion) value = convert(value, DType::F32);
    apply.args.push_back(value);
  }
  kernel::ScalarId result = k.add_scalar(conversion ? c.output : compute_dtype(c.output));
  vector.body.push_back({kernel::Let{result, apply}});
  if (!conversion && compute_dtype(c.output) != c.output) result = convert(result, c.output);
  const kernel::BufferId y = k.add_buffer({.name = "y", .dtype = c.output, .access = kernel::Access::Write, .size = n});
  vector.body.push_back({kernel::Store{.buffer = y, .index = index, .value = result}});
  kernel::Loop threads{.axis = "t", .begin = 0, .end = 32, .binding = Binding::ThreadX};
  threads.body.push_back({kernel::Define{"base", (sym::Expr::symbol("b") * 32 + sym::Expr::symbol("t")) * lanes}});
  threads.body.push_back({kernel::If{.condition = sym::lt(base, n), .then = {{vector}}}});
  kernel::Loop blocks{.axis = "b", .begin = 0, .end = sym::ceil_div(n, int64_t{32} * lanes), .binding = Binding::GridX};
  blocks.body.push_back({threads});
  k.body.push_back({blocks});
  return k;
}

TEST(CudaPrimitives, MatchTheirReferences) {
  const std::vector<Case> cases = make_cases();
  ASSERT_GT(cases.size(), 500u);
  std::vector<Kernel> kernels;
  for (const Case& c : cases) {
    constexpr int kLanes[] = {1, 2, 4, 8};
    kernels.push_back(make_kernel(c, kLanes[kernels.size() % 4]));
    ASSERT_NO_THROW(verify(kernels.back())) << kernel::to_string(kernels.back());
  }
  const CudaOnHost library(cuda_text(kernels), "-O0");   // hundreds of kernels: compiling them is what takes time
  ASSERT_TRUE(library.loaded());
  const uint64_t seed = 20240607;
  for (size_t at = 0; at < cases.size(); ++at) {
    const Case& c = cases[at];
    SCOPED_TRACE(c.name + " seed " + std::to_string(seed));
    std::mt19937_64 random(seed + at);
    const int64_t n = 344;   // a multiple of all numbers of lanes
    std::vector<Tensor> inputs;
    std::vector<std::unique_ptr<DeviceMemory>> memory;
    std::vector<void*> pointers;
    for (size_t input = 0; input < c.inputs.size(); ++input) inputs.push_back(make_input(c.inputs[input], n, random, *c.op, input));
    const Tensor expected = op::run_reference(*c.op, inputs, c.attrs).at(0);
    inputs.push_back(Tensor(c.output, {n}));
    for (const Tensor& tensor : inputs) {
      memory.push_back(std::make_unique<DeviceMemory>(tensor));
      pointers.push_back(memory.back()->data());
    }
    library.run(kernels[at], pointers, {n});
    EXPECT_TRUE(memory.back()->intact());
    const Tensor found = Tensor::borrow(c.output, {n}, pointers.back());
    int errors = 0;
    for (int64_t i = 0; i < n && errors < 3; ++i) {
      const std::string difference = compare(c, expected, found, i);
      if (difference.empty()) continue;
      ++errors;
      std::string args;
      for (size_t input = 0; input < c.inputs.size(); ++input)
        args += " " + std::to_string(is_int(inputs[input].dtype()) ? static_cast<double>(inputs[input].int_at(i)) : inputs[input].at(i));
      ADD_FAILURE() << difference << " for" << args;
    }
  }
}

// ---- whole kernels ---------------------------------------------------------------------------------------------------

struct Program {
  const char* text;
  std::vector<std::vector<int64_t>> sizes;   // one run each
  double tolerance = 0;                      // relative, of floats
};

const std::vector<Program>& programs() {
  static const std::vector<Program> all = {
      // Rows: several a block, sums over 32, 16, 128, 96 and 1024 threads; the result known to all of them.
      {R"(kernel rows_32(read @x: bf16[n*m], write @y: f32[n]) sizes (n, m) facts (n in 0 to 1000, m in 1 to 4096 multiple 8) {
        for b = 0 to floor_div(n + 3, 4) grid_x {
          for y = 0 to 4 thread_y {
            define row = min(b*4 + y, n - 1)
            reduce %sum: f32 = add, %top: f32 = max {
              for t = 0 to 32 thread_x {
                for s = 0 to floor_div(m + 255, 256) {
                  define base = s*256 + t*8
                  if lt(base, m) {
                    for v = 0 to 8 vector 8 x 1 {
                      %a: bf16 = load @x[row*m + base + v]
                      %c: f32 = cast(%a)
                      accumulate %sum with %c
                      accumulate %top with %c
                    }
                  }
                }
              }
            }
            for t = 0 to 1 thread_x {
              %z: f32 = mul(%sum, %top)
              store @y[row] = %z if (lt(b*4 + y, n))
            }
          }
        }
      })", {{1, 8}, {4, 64}, {7, 520}, {0, 8}}, 1e-5},
      {R"(kernel rows_16(read @x: i32[n*m], write @y: i32[n*16]) sizes (n, m) facts (n in 0 to 1000, m in 0 to 4096) {
        for b = 0 to floor_div(n + 7, 8) grid_x {
          for y = 0 to 8 thread_y {
            define row = min(b*8 + y, n - 1)
            reduce %sum: i32 = add {
              for t = 0 to 16 thread_x {
                for s = 0 to floor_div(m + 15, 16) {
                  %a: i32 = load @x[row*m + s*16 + t] if (lt(s*16 + t, m)) else 0.0
                  accumulate %sum with %a
                }
              }
            }
            for t = 0 to 16 thread_x {
              store @y[row*16 + t] = %sum if (lt(b*8 + y, n))
            }
          }
        }
      })", {{1, 1}, {9, 33}, {8, 0}}},
      {R"(kernel argmax_128(read @x: f32[n*m], write @y: i64[n], write @z: f32[n]) sizes (n, m) facts (n in 0 to 1000, m in 1 to 100000) {
        for b = 0 to n grid_x {
          reduce %at: i64 = argmax(%top: f32), %low: i64 = argmin(%least: f32) last {
            for t = 0 to 128 thread_x {
              for s = 0 to floor_div(m + 127, 128) {
                define i = s*128 + t
                %a: f32 = load @x[b*m + i] if (lt(i, m)) else 0.0
                if lt(i, m) {
                  accumulate %at with %a at i
                  accumulate %low with %a at i
                }
              }
            }
          }
          for t = 0 to 1 thread_x {
            %d: i64 = index at*1000 + low
            store @y[b] = %d
            %e: f32 = sub(%top, %least)
            store @z[b] = %e
          }
        }
      })", {{3, 1}, {2, 300}, {2, 5000}}},
      {R"(kernel logical_96(read @x: bool[n*m], write @y: bool[n*2]) sizes (n, m) facts (n in 0 to 1000, m in 0 to 100000) {
        for b = 0 to n grid_x {
          reduce %any: bool = or, %every: bool = and {
            for t = 0 to 96 thread_x {
              for s = 0 to floor_div(m + 95, 96) {
                define i = s*96 + t
                if lt(i, m) {
                  %a: bool = load @x[b*m + i]
                  accumulate %any with %a
                  accumulate %every with %a
                }
              }
            }
          }
          for t = 0 to 1 thread_x {
            store @y[b*2] = %any
            store @y[b*2 + 1] = %every
          }
        }
      })", {{3, 1}, {2, 300}}},
      {R"(kernel block_of_2d(read @x: f64[n*m], write @y: f64[1]) sizes (n, m) facts (n in 0 to 1000, m in 0 to 100000) {
        for b = 0 to 1 grid_x {
          reduce %sum: f64 = add, %product: i64 = mul {
            for z = 0 to 2 thread_z {
              for y = 0 to 4 thread_y {
                for t = 0 to 48 thread_x {
                  define i = (z*4 + y)*48 + t
                  for s = 0 to floor_div(n*m + 383, 384) {
                    if lt(s*384 + i, n*m) {
                      %a: f64 = load @x[s*384 + i]
                      accumulate %sum with %a
                      %three: i64 = constant 3
                      accumulate %product with %three
                    }
                  }
                }
              }
            }
          }
          for t = 0 to 1 thread_x {
            %c: f64 = cast(%product)
            %d: f64 = add(%c, %sum)
            store @y[0] = %d
          }
        }
      })", {{3, 7}, {20, 30}, {0, 1}}, 1e-12},
      // Two reductions of one block after the other use the same shared memory.
      {R"(kernel softmax_256(read @x: f32[n*m], write @y: f32[n*m]) sizes (n, m) facts (n in 0 to 1000, m in 1 to 1024) {
        local @row: f32[4]
        for b = 0 to n grid_x {
          for t = 0 to 256 thread_x {
            for u = 0 to 4 unroll {
              %a: f32 = load @x[b*m + u*256 + t] if (lt(u*256 + t, m)) else -inf
              store @row[u] = %a
            }
          }
          reduce %top: f32 = max {
            for t = 0 to 256 thread_x {
              for u = 0 to 4 unroll {
                %c: f32 = load @row[u]
                accumulate %top with %c
              }
            }
          }
          reduce %sum: f32 = add {
            for t = 0 to 256 thread_x {
              for u = 0 to 4 unroll {
                %d: f32 = load @row[u]
                %e: f32 = sub(%d, %top)
                %f: f32 = exp(%e)
                store @row[u] = %f
                accumulate %sum with %f
              }
            }
          }
          for t = 0 to 256 thread_x {
            for u = 0 to 4 unroll {
              %g: f32 = load @row[u]
              %h: f32 = div(%g, %sum)
              store @y[b*m + u*256 + t] = %h if (lt(u*256 + t, m))
            }
          }
        }
      })", {{1, 1}, {3, 257}, {2, 1024}}, 1e-5},
      // A reduction in a loop: its shared memory serves every iteration.
      {R"(kernel sums_in_a_loop(read @x: f32[n*m*128], write @y: f32[n*m]) sizes (n, m) facts (n in 0 to 1000, m in 0 to 1000) {
        for b = 0 to n grid_x {
          for i = 0 to m {
            reduce %sum: f32 = add {
              for t = 0 to 128 thread_x {
                %a: f32 = load @x[(b*m + i)*128 + t]
                accumulate %sum with %a
              }
            }
            for t = 0 to 1 thread_x {
              store @y[b*m + i] = %sum
            }
          }
        }
      })", {{1, 1}, {2, 9}}},
      // A tile through shared memory, with a padded pitch; part of the threads stores.
      {R"(kernel transpose_f16(read @x: f16[n*m], write @y: f16[n*m]) sizes (n, m) facts (n in 0 to 100000, m in 0 to 100000) {
        shared @tile: f16[33*32]
        for by = 0 to floor_div(n + 31, 32) grid_y {
          for bx = 0 to floor_div(m + 31, 32) grid_x {
            for y = 0 to 8 thread_y {
              for x = 0 to 32 thread_x {
                for u = 0 to 4 unroll {
                  define i = by*32 + u*8 + y
                  define j = bx*32 + x
                  %a: f16 = load @x[i*m + j] if (lt(i, n), lt(j, m)) else 0.0
                  store @tile[(u*8 + y)*33 + x] = %a
                }
              }
            }
            barrier
            for y = 0 to 8 thread_y {
              for x = 0 to 32 thread_x {
                for u = 0 to 4 unroll {
                  define j = bx*32 + u*8 + y
                  define i = by*32 + x
                  %c: f16 = load @tile[x*33 + u*8 + y]
                  store @y[j*n + i] = %c if (lt(i, n), lt(j, m))
                }
              }
            }
          }
        }
      })", {{1, 1}, {33, 70}, {64, 32}}},
      // Vectors in shared memory, of a size that depends on a size.
      {R"(kernel staged(read @x: f32[n*m], write @y: f32[n*m]) sizes (n, m) facts (n in 0 to 1000, m in 4 to 4096 multiple 4) {
        shared @row: f32[m]
        shared @bytes: i8[m]
        for b = 0 to n grid_x {
          for t = 0 to 64 thread_x {
            for s = 0 to floor_div(m + 255, 256) {
              if lt(s*256 + t*4, m) {
                for v = 0 to 4 vector 4 x 1 {
                  %a: f32 = load @x[b*m + s*256 + t*4 + v]
                  store @row[s*256 + t*4 + v] = %a
                  %k: i8 = cast(%a)
                  store @bytes[s*256 + t*4 + v] = %k
                }
              }
            }
          }
          barrier
          for t = 0 to 64 thread_x {
            for s = 0 to floor_div(m + 63, 64) {
              if lt(s*64 + t, m) {
                %c: f32 = load @row[m - 1 - (s*64 + t)]
                %d: i8 = load @bytes[s*64 + t]
                %e: f32 = cast(%d)
                %f: f32 = add(%c, %e)
                store @y[b*m + s*64 + t] = %f
              }
            }
          }
        }
      })", {{1, 4}, {3, 260}, {2, 1024}}},
      // Atomics: into words, and into parts of words, of global and of shared memory.
      {R"(kernel histogram(read @x: i32[n], readwrite @y: i32[8], readwrite @z: bf16[8], readwrite @s: u8[8], readwrite @top: f32[8])
          sizes (n) facts (n in 0 to 100000) {
        shared @count: i32[8]
        for b = 0 to floor_div(n + 127, 128) grid_x {
          for t = 0 to 8 thread_x {
            %zero: i32 = constant 0
            store @count[t] = %zero
          }
          barrier
          for t = 0 to 128 thread_x {
            if lt(b*128 + t, n) {
              %a: i32 = load @x[b*128 + t]
              %k: i64 = cast(%a)
              %one: i32 = constant 1
              store add @count[mod(k, 8)] = %one
              %h: bf16 = constant 1.0
              store add @z[mod(k, 8)] = %h
              %c: u8 = cast(%a)
              store max @s[mod(k, 8)] = %c
              %f: f32 = cast(%a)
              store min @top[mod(k, 8)] = %f
            }
          }
          barrier
          for t = 0 to 8 thread_x {
            %m: i32 = load @count[t]
            store add @y[t] = %m
          }
        }
      })", {{0}, {5}, {300}}},
      // Sizes and addresses beyond 32 bits are computed in 64.
      {R"(kernel wide(read @x: f32[n], write @y: i64[n*4]) sizes (n, big) facts (n in 0 to inf, big in 0 to inf) {
        for b = 0 to floor_div(n + 63, 64) grid_x {
          for t = 0 to 64 thread_x {
            define i = b*64 + t
            if lt(i, n) {
              %a: i64 = index i*big + 3
              %c: i64 = index floor_div(i*big - 5, 7)
              %d: i64 = index mod(i - 20, 7)*big
              %e: i64 = index select(lt(i, 9), min(i*big, 1000), max(i, big))
              store @y[i*4] = %a
              store @y[i*4 + 1] = %c
              store @y[i*4 + 2] = %d
              store @y[i*4 + 3] = %e
            }
          }
        }
      })", {{100, 3000000000}}},
      // Varying lanes: gathers, guards, conditions, random words, a scan in each lane.
      {R"(kernel lanes(read @x: f32[m], read @index: i64[n], write @y: f32[n], write @r: u32[n]) sizes (n, m, seed)
          facts (n in 0 to 10000 multiple 4, m in 1 to inf, seed in 0 to inf) {
        for b = 0 to floor_div(n + 127, 128) grid_x {
          for t = 0 to 32 thread_x {
            define base = b*128 + t*4
            if lt(base, n) {
              for v = 0 to 4 vector 4 x 1 {
                %k: i64 = load @index[base + v]
                define at = mod(k, m)
                %a: f32 = load @x[at] if (ne(mod(base + v, 3), 0)) else 7.0
                reduce %sum: f32 = add {
                  for s = 0 to 3 {
                    %before: f32 = current %sum
                    accumulate %sum with %a
                    if eq(mod(base + v, 2), 0) {
                      accumulate %sum with %before
                    }
                  }
                }
                store @y[base + v] = %sum
                %w: u32 = philox seed, base + v
                store @r[base + v] = %w
              }
            }
          }
        }
      })", {{4, 1, 3}, {132, 50, 12345678901}}},
  };
  return all;
}

TEST(CudaKernels, DoWhatTheirTextSays) {
  std::vector<Kernel> kernels;
  for (const Program& program : programs()) {
    kernels.push_back(kernel::parse_kernel(program.text, op::standard_ops()));
    ASSERT_NO_THROW(kernel::verify(kernels.back()));
  }
  const std::string text = cuda_text(kernels);
  EXPECT_EQ(text, cuda_text(kernels));
  const CudaOnHost library(text);
  ASSERT_TRUE(library.loaded());
  for (size_t index = 0; index < kernels.size(); ++index) {
    const Program& program = programs()[index];
    const Kernel& kernel = kernels[index];
    for (const std::vector<int64_t>& sizes : program.sizes) {
      const uint64_t seed = 7 * index + static_cast<uint64_t>(sizes[0]);
      SCOPED_TRACE(fmt::format("{} sizes {} seed {}", kernel.name, fmt::join(sizes, " "), seed));
      std::mt19937_64 random(seed);
      std::map<std::string, int64_t> symbols;
      for (size_t i = 0; i < sizes.size(); ++i) symbols[kernel.symbols[i]] = sizes[i];
      std::vector<Tensor> expected;
      std::vector<std::unique_ptr<DeviceMemory>> memory;
      std::vector<void*> pointers;
      for (const kernel::Buffer& buffer : kernel.buffers) {
        if (buffer.space != kernel::Space::Global) continue;
        Tensor tensor(buffer.dtype, {sym::evaluate(buffer.size, symbols)});
        for (int64_t i = 0; i < tensor.count(); ++i) {
          const int64_t value = static_cast<int64_t>(random() >> 33) % 9 - 4;
          if (is_float(buffer.dtype)) tensor.set(i, static_cast<double>(value) / 2);
          else tensor.set_int(i, buffer.dtype == DType::Bool ? value > 3 : std::abs(value));
        }
        memory.push_back(std::make_unique<DeviceMemory>(tensor));
        pointers.push_back(memory.back()->data());
        expected.push_back(std::move(tensor));
      }
      Interpreter(kernel, expected, sizes).run();
      library.run(kernel, pointers, sizes);
      int errors = 0;
      for (size_t b = 0; b < expected.size(); ++b) {
        EXPECT_TRUE(memory[b]->intact());
        const Tensor found = Tensor::borrow(expected[b].dtype(), expected[b].dims(), pointers[b]);
        for (int64_t i = 0; i < expected[b].count() && errors < 3; ++i) {
          const double want = expected[b].at(i), have = found.at(i);
          const bool close = std::abs(want - have) <= program.tolerance * std::max(1.0, std::abs(want));
          if (want == have || (std::isnan(want) && std::isnan(have)) || close) continue;
          ++errors;
          ADD_FAILURE() << "@" << kernel.buffers[b].name << "[" << i << "] is " << have << " instead of " << want;
        }
      }
    }
  }
}

// ---- faults ----------------------------------------------------------------------------------------------------------

// Runs a kernel after its text has been changed: each `from` by `to`, which must occur.
void run_changed(const Kernel& kernel, const std::string& from, const std::string& to, const std::vector<int64_t>& sizes) {
  std::string text = cuda_text({kernel});
  const size_t at = text.rfind(from);
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, from.size(), to);
  const CudaOnHost library(text);
  ASSERT_TRUE(library.loaded());
  std::map<std::string, int64_t> symbols;
  for (size_t i = 0; i < sizes.size(); ++i) symbols[kernel.symbols[i]] = sizes[i];
  std::vector<std::unique_ptr<DeviceMemory>> memory;
  std::vector<void*> pointers;
  for (const kernel::Buffer& buffer : kernel.buffers) {
    if (buffer.space != kernel::Space::Global) continue;
    memory.push_back(std::make_unique<DeviceMemory>(Tensor(buffer.dtype, {sym::evaluate(buffer.size, symbols)})));
    pointers.push_back(memory.back()->data());
  }
  library.run(kernel, pointers, sizes);
}

Kernel reversed() {
  return kernel::parse_kernel(R"(kernel reversed(read @x: f32[n*64], write @y: f32[n*64]) sizes (n) facts (n in 0 to 1000) {
    shared @tile: f32[64]
    for b = 0 to n grid_x {
      for t = 0 to 64 thread_x {
        %a: f32 = load @x[b*64 + t]
        store @tile[t] = %a
      }
      barrier
      for t = 0 to 64 thread_x {
        %c: f32 = load @tile[63 - t]
        store @y[b*64 + t] = %c
      }
    }
  })", op::standard_ops());
}
Kernel row_sums() {
  return kernel::parse_kernel(R"(kernel row_sums(read @x: f32[n*64], write @y: f32[n]) sizes (n) facts (n in 0 to 1000) {
    for b = 0 to n grid_x {
      reduce %sum: f32 = add {
        for t = 0 to 64 thread_x {
          %a: f32 = load @x[b*64 + t]
          accumulate %sum with %a
        }
      }
      for t = 0 to 1 thread_x {
        store @y[b] = %sum
      }
    }
  })", op::standard_ops());
}

TEST(CudaFaultsDeathTest, WholeKernelsPass) {
  run_changed(reversed(), "__syncthreads();", "__syncthreads();", {3});
  run_changed(row_sums(), "__syncthreads();", "__syncthreads();", {3});
}
TEST(CudaFaultsDeathTest, ARaceIsFound) {
  // Without the barrier, a thread reads what another one writes, or has not written yet.
  EXPECT_DEATH(run_changed(reversed(), "__syncthreads();", "", {1}), "shared memory is (read before it is written|read while another thread writes it)");
  EXPECT_DEATH(run_changed(reversed(), "tile[t] = ", "tile[t / 2] = ", {1}), "shared memory is written by two threads at once .line 0., block .0, 0, 0., thread .1, 0, 0.");
  EXPECT_DEATH(run_changed(reversed(), "__syncthreads();", "__syncthreads(); if (threadIdx.x == 5) tile[7] = 1.0f;", {1}),
               "shared memory is (read while another thread writes it|written while another thread reads it)");
}
TEST(CudaFaultsDeathTest, DivergenceIsFound) {
  EXPECT_DEATH(run_changed(row_sums(), "__syncthreads();", "if (threadIdx.x == 3) return;\n__syncthreads();", {1}), "a thread ended before others that wait for it");
  EXPECT_DEATH(run_changed(reversed(), "__syncthreads();", "if (threadIdx.x != 3) __syncthreads();\nelse __syncthreads();", {1}),
               "threads wait for each other at different places");
  EXPECT_DEATH(run_changed(row_sums(), "__shfl_xor_sync(0xffffffffu, v, d)", "(threadIdx.x == 9 ? v : __shfl_xor_sync(0xffffffffu, v, d))", {1}),
               "threads wait for each other at different places");
}
TEST(CudaFaultsDeathTest, AccessesBeyondSharedMemoryAreFound) {
  EXPECT_DEATH(run_changed(reversed(), "tile[t] = ", "tile[t + 1] = ", {1}), "an access beyond the shared memory of the block");
}

// ---- text ------------------------------------------------------------------------------------------------------------

// As it was read and found good: test/golden/emit/cuda/<kernel>.fl → <kernel>.cu.txt.
TEST(Cuda, GoldenText) {
  const auto read_file = [](const std::filesystem::path& path) {
    std::ifstream in(path);
    return std::string((std::istreambuf_iterator<char>(in)), {});
  };
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(FUSELOOM_GOLDEN_DIR) / "cuda")) {
    if (entry.path().extension() != ".fl") continue;
    const Kernel kernel = kernel::parse_kernel(read_file(entry.path()), op::standard_ops());
    EXPECT_NO_THROW(kernel::verify(kernel));
    const std::filesystem::path golden = std::filesystem::path(entry.path()).replace_extension(".cu.txt");
    const std::string text = cuda_text({kernel});
    if (text != read_file(golden)) {
      const std::filesystem::path written = std::filesystem::temp_directory_path() / golden.filename();
      std::ofstream(written) << text;
      ADD_FAILURE() << golden << " differs from " << written;
    }
    ++count;
  }
  EXPECT_GE(count, 3u);
}

TEST(Cuda, SharedMemoryIsLaidOut) {
  const Kernel k = kernel::parse_kernel(R"(kernel k(write @y: f32[n]) sizes (n) facts (n in 0 to 1000) {
    shared @a: f16[n]
    shared @b: i8[3]
    shared @c: f64[2]
    for b = 0 to 4 grid_x {
      for y = 0 to 3 thread_y { for t = 0 to 64 thread_x { } }
      for y = 0 to 2 thread_y { for t = 0 to 96 thread_x { } }
    }
  })", op::standard_ops());
  EXPECT_EQ(sym::evaluate(shared_bytes(k), {{"n", 17}}), 48 + 16 + 16);
  EXPECT_EQ(block_of(k), (std::array<int32_t, 3>{96, 3, 1}));
}

}  // namespace
}  // namespace fuseloom::emit
