// What torch asks of a device: streams, events, the current device, its allocators and its generator.
#pragma once

#include <memory>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "copies.h"
#include "random.h"

namespace sim {

struct Event {
  RecordPtr last; // nullptr before the first recording
  bool timed;
};

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return c10::DeviceType::PrivateUse1;
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return device();
  }
  c10::Device getDevice() const override {
    return device();
  }
  void setDevice(c10::Device wanted) const override {
    TORCH_CHECK(wanted.index() <= 0, "sim error: invalid device ordinal");
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }

  c10::Stream getStream(c10::Device) const override {
    return as_stream(current_id);
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return as_stream(0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool high_priority) const override {
    return as_stream(streams().from_pool(high_priority));
  }
  c10::Stream getNewStream(c10::Device, int priority) const override {
    return as_stream(streams().from_pool(priority < 0));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return as_stream(std::exchange(current_id, stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return &streams().get(stream.id());
  }
  bool queryStream(const c10::Stream& stream) const override {
    const bool idle = streams().get(stream.id()).idle();
    fault().check();
    return idle;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    streams().get(stream.id()).drain();
    fault().check();
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    streams().synchronize();
    fault().check();
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    memory().used_by(pointer.get(), stream.id());
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag flag)
      const override {
    if (*event == nullptr) *event = new Event{nullptr, flag == c10::EventFlag::BACKEND_DEFAULT};
    of(*event)->last = streams().get(stream.id()).record();
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr && of(event)->last) streams().get(stream.id()).wait_for(of(event)->last);
  }
  bool queryEvent(void* event) const override {
    const bool done = event == nullptr || !of(event)->last || of(event)->last->done();
    fault().check();
    return done;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr && of(event)->last) of(event)->last->wait();
    fault().check();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete of(event);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    TORCH_CHECK(from != nullptr && to != nullptr && of(from)->last && of(to)->last, "an event was never recorded");
    TORCH_CHECK(of(from)->timed && of(to)->timed, "an event without enable_timing has no time");
    TORCH_CHECK(of(from)->last->done() && of(to)->last->done(), "sim error: device not ready");
    return std::chrono::duration<double, std::milli>(of(to)->last->at() - of(from)->last->at()).count();
  }

 private:
  static Event* of(void* event) {
    return static_cast<Event*>(event);
  }
};

struct Hooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return started && !forked;
  }
  void init() const override {
    start();
  }
  c10::DeviceIndex deviceCount() const override {
    return 1;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    TORCH_CHECK(index <= 0, "sim error: invalid device ordinal");
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  bool isPinnedPtr(const void* address) const override {
    return !forked && host_memory().is_reachable(address, 1);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator();
  }
  at::Device getDeviceFromPtr(void*) const override {
    return device();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::Generator(c10::make_intrusive<Generator>());
  }
  // Storages that grow, or that FSDP frees and takes again: what fits of the contents moves in stream order.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    auto pointer = allocator().allocate(bytes);
    const auto kept = std::min(bytes, impl->nbytes());
    if (kept > 0) allocator().copy_data(pointer.get(), impl->data(), kept);
    impl->set_data_ptr_noswap(std::move(pointer));
    impl->set_nbytes(bytes);
  }
};

} // namespace sim
