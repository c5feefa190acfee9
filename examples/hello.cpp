// Build a small network, compile it for any number of rows, run it on your own buffers.
#include <fuseloom/fuseloom.h>

#include <cstdio>
#include <vector>

int main() {
  using namespace fuseloom;
  try {
    // 1. What is computed: softmax(relu(x w + b)). "rows" is a symbol: one program serves every number of rows.
    Graph graph;
    const Value x = graph.input("x", DType::F32, {"rows", 4});
    const Value w = graph.constant(Tensor::of(DType::F32, {4, 3}, {1, 0, 0, 0, 1, 0, 0, 0, 1, 0.5, 0.5, 0.5}));
    const Value b = graph.constant(Tensor::of(DType::F32, {3}, {0.1, -0.1, 0}));
    graph.output(softmax(relu(matmul(x, w) + b), -1), "y");

    // 2. Compile it. The kernels come from the disk cache when an equal program was compiled before.
    const Program program = compile(graph);
    std::printf("%zu nodes became %zu kernels\n%s\n", program.info().nodes, program.info().kernels, program.explain().c_str());

    // 3. Run it. Here on memory that the caller owns; run() without outputs makes fresh tensors.
    std::vector<float> input = {1, 2, 3, 4, 4, 3, 2, 1}, output(2 * 3);
    const std::vector<Tensor> inputs = {Tensor::borrow(DType::F32, {2, 4}, input.data())};
    std::vector<Tensor> outputs = {Tensor::borrow(DType::F32, {2, 3}, output.data())};
    program.run_into(inputs, outputs);
    for (int row = 0; row < 2; ++row) std::printf("%.4f %.4f %.4f\n", output[row * 3], output[row * 3 + 1], output[row * 3 + 2]);

    // 4. The same program, another size, nothing compiled anew.
    const std::vector<Tensor> larger = program.run({Tensor(DType::F32, {100, 4})});
    std::printf("%s\n", larger[0].type_string().c_str());
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "hello: %s\n", error.what());
    return 1;
  }
}
