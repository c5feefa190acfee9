#include <gtest/gtest.h>

#include "op/decomposition_testing.h"

namespace fuseloom::op {
namespace {

// One scalar unit, so that every gate can be followed by hand.
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Tensor slice_dim(const Tensor& x, int64_t axis, int64_t start, int64_t size) {
  Shape starts(static_cast<size_t>(x.rank()), sym::Expr(0)), sizes = shape_of(x.dims());
  starts[static_cast<size_t>(axis)] = start;
  sizes[static_cast<size_t>(axis)] = size;
  return run("slice", {x},
             {{"starts", starts}, {"sizes", sizes}, {"steps", std::vector<int64_t>(static_cast<size_t>(x.rank()), 1)}});
}

TEST(Lstm, OneUnitByHand) {
  const Tensor x = floats({2, 1, 1}, {0.5, -1}), w = floats({1, 4, 1}, {0.1, 0.2, 0.3, 0.4}),
               r = floats({1, 4, 1}, {0.5, 0.6, 0.7, 0.8});
  const Tensor b = floats({1, 8}, {0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08}),
               p = floats({1, 3}, {0.3, 0.2, 0.1});
  const std::vector<Tensor> result =
      run_all("lstm", {x, w, r, b, Tensor(), Tensor(), Tensor(), p}, {{"direction", std::string("forward")}}, 3);
  double h = 0, c = 0;
  for (const double in : {0.5, -1.0}) {
    const double i = sigmoid(0.1 * in + 0.5 * h + 0.06 + 0.3 * c), f = sigmoid(0.3 * in + 0.7 * h + 0.1 + 0.1 * c);
    const double g = std::tanh(0.4 * in + 0.8 * h + 0.12);
    const double next = f * c + i * g;
    h = sigmoid(0.2 * in + 0.6 * h + 0.08 + 0.2 * next) * std::tanh(next);
    c = next;
  }
  EXPECT_NEAR(result[0].at(1), h, 1e-6);
  EXPECT_NEAR(result[1].at(0), h, 1e-6);
  EXPECT_NEAR(result[2].at(0), c, 1e-6);
}

TEST(Gru, LinearBeforeResetChangesTheCandidate) {
  const Tensor x = floats({1, 1, 1}, {0.5}), w = floats({1, 3, 1}, {0.1, 0.2, 0.3}),
               r = floats({1, 3, 1}, {0.4, 0.5, 0.6});
  const Tensor b = floats({1, 6}, {0, 0, 0.1, 0, 0, 0.2}), h0 = floats({1, 1, 1}, {0.7});
  const double z = sigmoid(0.05 + 0.28), reset = sigmoid(0.1 + 0.35);
  for (const int64_t linear : {0, 1}) {
    const Tensor y = run("gru", {x, w, r, b, Tensor(), h0},
                         {{"direction", std::string("forward")}, {"linear_before_reset", linear}});
    const double inner = linear != 0 ? reset * (0.42 + 0.2) : 0.6 * reset * 0.7 + 0.2;
    EXPECT_NEAR(y.at(0), (1 - z) * std::tanh(0.15 + 0.1 + inner) + z * 0.7, 1e-6);
  }
}

TEST(Rnn, ActivationsAndClip) {
  const Tensor x = floats({1, 1, 1}, {3}), w = floats({1, 1, 1}, {1}), r = floats({1, 1, 1}, {0});
  const auto run_with = [&](Attrs attrs) {
    attrs.set("direction", std::string("forward"));
    return run("rnn", {x, w, r}, attrs).at(0);
  };
  EXPECT_NEAR(run_with({}), std::tanh(3), 1e-6);
  EXPECT_NEAR(run_with({{"clip", 0.5}}), std::tanh(0.5), 1e-6);
  EXPECT_EQ(run_with({{"activations", std::string("affine")},
                      {"alpha", std::vector<double>{2}},
                      {"beta", std::vector<double>{1}}}),
            7);
  EXPECT_EQ(run_with({{"activations", std::string("relu")}}), 3);
  expect_user_error([&] { run_with({{"activations", std::string("swish")}}); }, "no activation \"swish\"");
  expect_user_error([&] { run_with({{"activations", std::string("relu,tanh")}}); }, "expected 1 names");
}

// Properties that hold for all three: a bidirectional layer is a forward and a reverse one side by side; reverse is
// forward on the reversed sequence; layout 1 swaps dimensions; a short sequence does not see what follows it.
TEST(Recurrent, DirectionsLayoutsAndLengths) {
  const int64_t steps = 4, batch = 3, in = 2, hidden = 5;
  for (const auto& [op, gates] : {std::pair<const char*, int64_t>{"lstm", 4}, {"gru", 3}, {"rnn", 1}}) {
    SCOPED_TRACE(op);
    const Tensor x = random_tensor(DType::F64, {steps, batch, in}, 1),
                 w = random_tensor(DType::F64, {2, gates * hidden, in}, 2);
    const Tensor r = random_tensor(DType::F64, {2, gates * hidden, hidden}, 3),
                 b = random_tensor(DType::F64, {2, 2 * gates * hidden}, 4);
    const Tensor lengths = ints(DType::I32, {4, 1, 3}), h = random_tensor(DType::F64, {2, batch, hidden}, 5);
    const std::vector<Tensor> both =
        run_all(op, {x, w, r, b, lengths, h}, {{"direction", std::string("bidirectional")}}, 2);
    EXPECT_EQ(both[0].dims(), (Dims{steps, 2, batch, hidden}));
    for (int64_t d = 0; d < 2; ++d) {
      const std::vector<Tensor> operands = {
          x, slice_dim(w, 0, d, 1), slice_dim(r, 0, d, 1), slice_dim(b, 0, d, 1), lengths, slice_dim(h, 0, d, 1)};
      const std::string direction = d == 0 ? "forward" : "reverse";
      const std::vector<Tensor> one = run_all(op, operands, {{"direction", direction}}, 2);
      expect_close(one[0], slice_dim(both[0], 1, d, 1), 0);
      expect_close(one[1], slice_dim(both[1], 0, d, 1), 0);
      if (d == 1) {
        std::vector<Tensor> reversed = operands;
        reversed[0] = run("reverse_sequence", {x, lengths}, {{"batch_axis", int64_t{1}}, {"time_axis", int64_t{0}}});
        const std::vector<Tensor> forward = run_all(op, reversed, {{"direction", std::string("forward")}}, 2);
        expect_close(forward[1], one[1], 0);
      }
    }
    for (int64_t d = 0; d < 2; ++d) {  // sequence 1 ends after one step
      for (int64_t i = 0; i < hidden; ++i) EXPECT_EQ(both[0].at(((1 * 2 + d) * batch + 1) * hidden + i), 0);
    }
    const std::vector<int64_t> swap = {1, 0, 2};
    const Tensor x1 = run("transpose", {x}, {{"perm", swap}}), h1 = run("transpose", {h}, {{"perm", swap}});
    const std::vector<Tensor> batch_first = run_all(
        op, {x1, w, r, b, lengths, h1}, {{"direction", std::string("bidirectional")}, {"layout", int64_t{1}}}, 2);
    expect_close(run("transpose", {batch_first[0]}, {{"perm", std::vector<int64_t>{1, 2, 0, 3}}}), both[0], 0);
    expect_close(run("transpose", {batch_first[1]}, {{"perm", swap}}), both[1], 0);
  }
}

TEST(Recurrent, EmptySequencesKeepTheState) {
  const Tensor h = random_tensor(DType::F32, {1, 2, 3}, 6);
  const std::vector<Tensor> result = run_all("gru",
                                             {Tensor(DType::F32, {0, 2, 4}), Tensor(DType::F32, {1, 9, 4}),
                                              Tensor(DType::F32, {1, 9, 3}), Tensor(), Tensor(), h},
                                             {{"direction", std::string("forward")}}, 2);
  EXPECT_EQ(result[0].dims(), (Dims{0, 1, 2, 3}));
  expect_close(result[1], h, 0);
}

// Few steps are written out, many become recurrent_steps; all ways agree for every cell, direction and layout.
TEST(Recurrent, Decomposition) {
  const struct {
    std::string op;
    int64_t gates;
    std::vector<Attrs> attrs;
  } cells[] = {{"lstm", 4, {{}, {{"input_forget", int64_t{1}}}}}, {"gru", 3, {{}, {{"linear_before_reset", int64_t{1}}}}}, {"rnn", 1, {{}}}};
  uint64_t seed = 1;
  for (const auto& cell : cells) {
    for (Attrs attrs : cell.attrs) {
      for (const char* direction : {"forward", "reverse", "bidirectional"}) {
        for (const int64_t layout : {0, 1}) {
          for (const int64_t steps : {1 + static_cast<int64_t>(seed % 3), int64_t{9}}) {
          const int64_t batch = 2, in = 3, hidden = 5, directions = std::string(direction) == "bidirectional" ? 2 : 1;
          const DType dtype = seed % 4 == 0 ? DType::F16 : DType::F32;
          attrs.set("direction", std::string(direction));
          attrs.set("layout", layout);
          const auto numbers = [&](Dims dims) { return random_tensor(dtype, std::move(dims), ++seed); };
          const Dims state = layout != 0 ? Dims{batch, directions, hidden} : Dims{directions, batch, hidden};
          std::vector<Tensor> inputs{numbers(layout != 0 ? Dims{batch, steps, in} : Dims{steps, batch, in}), numbers({directions, cell.gates * hidden, in}),
                                     numbers({directions, cell.gates * hidden, hidden}), numbers({directions, 2 * cell.gates * hidden}), Tensor(), numbers(state)};
          if (cell.gates == 4) {
            inputs.push_back(numbers(state));
            if (seed % 2 == 0) inputs.push_back(numbers({directions, 3 * hidden}));
          }
          expect_decomposition(cell.op, inputs, attrs, cell.gates == 4 ? 3 : 2);
          if (steps != 9) continue;
          // What only recurrent_steps takes.
          inputs[4] = Tensor::of_ints(DType::I32, {batch}, std::vector<int64_t>{7, 0});
          Attrs more = attrs;
          more.set("clip", 0.75);
          expect_decomposition(cell.op, inputs, more, cell.gates == 4 ? 3 : 2);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fuseloom::op
