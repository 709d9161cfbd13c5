#pragma once
// The times that kernels_check prints: a part of that program, included inside its namespace after
// Weights and make_args().

double time_us(const std::function<void(int)>& call) {
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreate(&stream));
  CUDA_CHECK(cudaStreamDestroy(stream));
  cudaEvent_t a, b;
  cudaEventCreate(&a);
  cudaEventCreate(&b);
  std::vector<double> times;
  for (int repeat = 0; repeat < 12; ++repeat) {
    cudaEventRecord(a);
    for (int i = 0; i < 40; ++i) {
      call(i);
    }
    cudaEventRecord(b);
    CUDA_CHECK(cudaEventSynchronize(b));
    float ms = 0;
    cudaEventElapsedTime(&ms, a, b);
    times.push_back(ms * 1000.0 / 40);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void print_times() {
  const int64_t n = 24576, k = 4096;
  const int copies = 4;
  std::vector<std::unique_ptr<Weights>> weights;
  for (int i = 0; i < copies; ++i) {
    weights.push_back(std::make_unique<Weights>(n, k, true));
  }
  std::printf("\ngate_up %ld x %ld and SwiGLU, us\n%6s %12s %12s %12s\n",
              (long)n,
              (long)k,
              "m",
              "fused",
              "two kernels",
              "product");
  for (const int64_t m : {1, 16, 128, 2048}) {
    DeviceArray<__nv_bfloat16> x(m * k);
    DeviceArray<uint16_t> y(m * n), out(m * n / 2);
    fill_activations<<<528, 256>>>(x.get(), x.count(), 5, false);
    DeviceArray<uint8_t> workspace(cuda::w4a16_workspace_bytes(m, n, k));
    const W4A16Plan plan = cuda::plan_w4a16(m, n, k, 132);
    const auto product = [&](int i) {
      W4A16Args a = make_args(*weights[i % copies], x.get(), m, y.get(), n);
      a.workspace = workspace.get();
      cuda::launch_w4a16_sm90(plan, a, nullptr);
    };
    const double fused = time_us([&](int i) {
      W4A16Args a = make_args(*weights[i % copies], x.get(), m, out.get(), n / 2);
      a.workspace = workspace.get();
      a.swiglu = true;
      cuda::launch_w4a16_sm90(plan, a, nullptr);
    });
    const double two = time_us([&](int i) {
      product(i);
      QuantizeActArgs s;
      s.input = ActInput::SiluMul;
      s.x = y.get();
      s.m = m;
      s.k = n / 2;
      s.ldx = n;
      s.unquantized = out.get();
      cuda::quantize_act(s, nullptr);
    });
    std::printf("%6ld %12.2f %12.2f %12.2f\n", (long)m, fused, two, time_us(product));
  }
  std::printf("\nnorm (k 4096) or silu (k 12288) and quantize, us\n%6s %6s %12s %12s %12s\n",
              "input",
              "m",
              "fused",
              "two passes",
              "quantize");
  for (const ActInput input : {ActInput::RmsNorm, ActInput::SiluMul}) {
    for (const int64_t m : {1, 16, 128, 2048}) {
      const int64_t width = input == ActInput::RmsNorm ? 4096 : 12288;
      DeviceArray<__nv_bfloat16> x(m * width * 2), weight(width), plain(m * width),
          values(m * width);
      DeviceArray<float> scale(m);
      fill_activations<<<528, 256>>>(x.get(), x.count(), 5, false);
      fill_activations<<<528, 256>>>(weight.get(), weight.count(), 6, false);
      QuantizeActArgs args;
      args.input = input;
      args.x = x.get();
      args.m = m;
      args.k = width;
      args.ldx = 2 * width;
      args.norm_weight = weight.get();
      args.eps = 1e-6f;
      QuantizeActArgs fused = args;
      fused.values = values.get();
      fused.token_scale = scale.get();
      QuantizeActArgs first = args;
      first.unquantized = plain.get();
      QuantizeActArgs second = fused;
      second.input = ActInput::Plain;
      second.x = plain.get();
      second.ldx = width;
      const double one = time_us([&](int) { cuda::quantize_act(fused, nullptr); });
      const double two = time_us([&](int) {
        cuda::quantize_act(first, nullptr);
        cuda::quantize_act(second, nullptr);
      });
      const double alone = time_us([&](int) { cuda::quantize_act(second, nullptr); });
      std::printf("%6s %6ld %12.2f %12.2f %12.2f\n",
                  input == ActInput::RmsNorm ? "norm" : "silu",
                  (long)m,
                  one,
                  two,
                  alone);
    }
  }
}
