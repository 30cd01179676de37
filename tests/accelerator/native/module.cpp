// The Python module of the simulated device. One translation unit: torch's headers take nearly all of the compiler's
// time, and each unit would read them again.
#include <torch/csrc/utils/pybind.h>

#include "operators.h"
#include "process_group.h"

namespace {

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&sim::fallback>());
}

// Autocast casts nothing here: which operators it is for is a list that each kind of device has of its own.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  sim::register_operators(m);
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, sim::Guard)

void register_device() {
  sim::watch_forks();
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &sim::allocator());
  at::setHostAllocator(c10::DeviceType::PrivateUse1, &sim::pinned_allocator());
  at::RegisterPrivateUse1HooksInterface(new sim::Hooks);
}

// Waits for all streams, and then makes their delays begin where a new process has them.
void seed(uint64_t value) {
  sim::streams().synchronize();
  sim::knobs().seed = value;
  sim::streams().each([](sim::Queue& queue) { queue.restart_delays(); });
}

void clear_error() {
  sim::streams().synchronize();
  sim::fault().clear();
}

// Lets no kernel run any more, so that none does while the process takes itself apart. A stream that waits for another
// process keeps its thread, which then touches nothing.
void stop() {
  if (!sim::started || sim::forked) return;
  sim::fault().set("every task", "the process ends");
  const auto until = sim::Clock::now() + std::chrono::seconds(1);
  sim::streams().each([&](sim::Queue& queue) {
    while (!queue.idle() && sim::Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
}

// Keeps a stream from running anything until it is released.
struct Hold {
  sim::RecordPtr released = std::make_shared<sim::Record>();

  explicit Hold(int64_t stream) {
    sim::streams().get(stream).wait_for(released);
  }
};

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  const py::call_guard<py::gil_scoped_release> without_gil;
  m.def("register_device", &register_device);
  m.def("seed", &seed, without_gil);
  m.def("delay", [](int64_t longest_us, double chance) {
    sim::knobs().chance = chance;
    sim::knobs().delay_us = longest_us;
  });
  m.def("bandwidth", [](double bytes_per_s) { sim::knobs().bandwidth = bytes_per_s; });
  m.def("slice_bytes", [](int64_t bytes) { sim::knobs().slice_bytes = bytes; });
  m.def("poison", [](bool on) { sim::knobs().poison = on; });
  m.def("synchronous", [](bool on) { sim::knobs().synchronous = on; });
  m.def("early_futures", [](bool on) { sim::knobs().early_futures = on; });
  py::class_<Hold>(m, "Hold").def(py::init<int64_t>()).def("release", [](Hold& hold) { hold.released->finish(); });
  m.def("clear_error", &clear_error, without_gil);
  m.def("stop", &stop, without_gil);
  m.def("waited", [] { return sim::waited().take(); });
  m.def("is_started", [] { return sim::started.load(); });
  m.def("in_bad_fork", [] { return sim::forked.load(); });
  m.def("register_host", [](uintptr_t at, size_t n) { sim::host_memory().register_range(at, n); }, without_gil);
  m.def("unregister_host", [](uintptr_t at) { sim::host_memory().unregister(at); }, without_gil);
  m.def("default_generator", [] { return sim::default_generator(); });
  m.def("process_group", [](c10::intrusive_ptr<c10d::Backend> gloo) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<sim::Group>(std::move(gloo));
  });
}
