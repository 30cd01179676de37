// Streams: a thread and a queue of tasks each. Events are records that a stream finishes in its order.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Stream.h>

#include "context.h"
#include "fault.h"
#include "knobs.h"
#include "without_gil.h"

namespace sim {

using Clock = std::chrono::steady_clock;

// One recording of an event. An event that is recorded again gets another one: who waits for the first still does.
class Record {
 public:
  void finish() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      at_ = Clock::now();
      done_ = true;
    }
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }

  bool done() {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }

  Clock::time_point at() {
    std::lock_guard<std::mutex> lock(mutex_);
    return at_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Clock::time_point at_;
};

using RecordPtr = std::shared_ptr<Record>;

inline uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

class Queue {
 public:
  explicit Queue(int64_t id) : id_(id) {
    std::thread([this] { work(); }).detach();
  }

  // Queues a task. It must own no memory of the device: a reference that someone forgot would not show.
  void push(std::string name, std::function<void()> run) {
    push({std::move(name), std::move(run), false});
  }

  RecordPtr record() {
    auto record = std::make_shared<Record>();
    push({"event record", [record] { record->finish(); }, true});
    return record;
  }

  void wait_for(RecordPtr record) {
    push({"event wait", [record] { record->wait(); }, true});
  }

  bool idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return ended_ == queued_;
  }

  // Blocks the calling thread until all that is queued now has ended.
  void drain() {
    const WithoutGil without_gil;
    std::unique_lock<std::mutex> lock(mutex_);
    const auto target = queued_;
    changed_.wait(lock, [&] { return ended_ >= target; });
  }

  // Sleeps as the seed has it. The n-th delay of a stream is the same in each run with a seed.
  void delay() {
    const auto longest = knobs().delay_us.load();
    if (longest <= 0) return;
    const auto draw = mixed(knobs().seed.load() ^ mixed((static_cast<uint64_t>(id_) << 40) ^ delays_++));
    if (static_cast<double>(draw & 0xffff) / 65536.0 >= knobs().chance.load()) return;
    std::this_thread::sleep_for(std::chrono::microseconds((draw >> 16) % static_cast<uint64_t>(longest + 1)));
  }

  void restart_delays() {
    delays_ = 0;
  }

  int64_t id() const {
    return id_;
  }

 private:
  struct Task {
    std::string name;
    std::function<void()> run;
    bool even_after_fault;
  };

  void push(Task task) {
    start();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
      ++queued_;
    }
    changed_.notify_all();
    if (knobs().synchronous) drain();
  }

  void work();

  const int64_t id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  uint64_t queued_ = 0;
  uint64_t ended_ = 0;
  std::atomic<uint64_t> delays_{0};
};

// The stream whose thread this is; nullptr on threads of the host.
inline thread_local Queue* running = nullptr;

inline void Queue::work() {
  running = this;
  at::AutoDispatchBelowADInplaceOrView without_autograd;
  while (true) {
    Task task;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    delay();
    if (task.even_after_fault || !fault().is_set()) {
      try {
        task.run();
      } catch (const c10::Error& error) {
        fault().set(task.name, error.what_without_backtrace());
      } catch (const std::exception& error) {
        fault().set(task.name, error.what());
      }
    }
    task.run = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++ended_;
    }
    changed_.notify_all();
  }
}

// All streams of the device. As torch.cuda does, new ones come from two pools of 32, in turn.
class Streams {
 public:
  static constexpr int64_t kPool = 32;
  static constexpr int64_t kMost = 256;

  Queue& get(c10::StreamId id) {
    start();
    TORCH_CHECK(id >= 0 && id < kMost, "sim has no stream ", id);
    std::lock_guard<std::mutex> lock(mutex_);
    if (queues_[id] == nullptr) queues_[id] = new Queue(id);
    return *queues_[id];
  }

  c10::StreamId from_pool(bool high_priority) {
    const auto turn = (high_priority ? high_ : low_)++ % kPool;
    return 1 + turn + (high_priority ? kPool : 0);
  }

  // A stream that no pool hands out, for a process group.
  c10::StreamId own() {
    const auto id = 1 + 2 * kPool + own_++;
    TORCH_CHECK(id < kMost, "more process groups than sim has streams");
    return id;
  }

  template <typename Do>
  void each(const Do& act) {
    for (int64_t id = 0; id < kMost; ++id) {
      Queue* queue = nullptr;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        queue = queues_[id];
      }
      if (queue != nullptr) act(*queue);
    }
  }

  void synchronize() {
    each([](Queue& queue) { queue.drain(); });
  }

 private:
  std::mutex mutex_;
  std::array<Queue*, kMost> queues_{};
  std::atomic<int64_t> low_{0}, high_{0}, own_{0};
};

inline Streams& streams() {
  static auto* all = new Streams;
  return *all;
}

inline thread_local c10::StreamId current_id = 0;

inline Queue& current() {
  return streams().get(current_id);
}

inline c10::Device device() {
  return {c10::DeviceType::PrivateUse1, 0};
}

inline c10::Stream as_stream(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device(), id);
}

} // namespace sim
