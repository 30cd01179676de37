// Collectives of device tensors: gloo moves the bytes, in the order of a stream of the group's own, as NCCL does.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "copies.h"

namespace sim {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class Work final : public c10d::Work {
 public:
  Work(int rank, c10d::OpType type, RecordPtr done, c10::intrusive_ptr<c10::ivalue::Future> future, Tensors results)
      : c10d::Work(rank, type), done_(std::move(done)), future_(std::move(future)), results_(std::move(results)) {}

  bool isCompleted() override {
    return done_->done();
  }
  bool isSuccess() const override {
    return !fault().is_set();
  }
  // The stream waits, and not the host; only a barrier is for the host.
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void synchronize() override {
    current().wait_for(done_);
    if (opType_ != c10d::OpType::BARRIER) return;
    done_->wait();
    fault().check();
  }
  void blockCurrentStream() override {
    synchronize();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }
  std::vector<at::Tensor> result() override {
    return results_;
  }

 private:
  const RecordPtr done_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  const Tensors results_;
};

class Group final : public c10d::Backend {
 public:
  explicit Group(c10::intrusive_ptr<c10d::Backend> gloo)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), stream_(streams().own()) {}

  const std::string getBackendName() const override {
    return "simccl";
  }
  void setSequenceNumberForGroup() override {
    gloo_->setSequenceNumberForGroup();
  }
  uint64_t getSequenceNumberForGroup() override {
    return gloo_->getSequenceNumberForGroup();
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return launch(c10d::OpType::BROADCAST, tensors, tensors, [=, g = gloo_, on = seen(tensors)]() mutable {
      return g->broadcast(on, options);
    });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return launch(c10d::OpType::ALLREDUCE, tensors, tensors, [=, g = gloo_, on = seen(tensors)]() mutable {
      return g->allreduce(on, options);
    });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return launch(c10d::OpType::ALLREDUCE_COALESCED, tensors, tensors, [=, g = gloo_, on = seen(tensors)]() mutable {
      return g->allreduce_coalesced(on, options);
    });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return launch(c10d::OpType::REDUCE, tensors, tensors, [=, g = gloo_, on = seen(tensors)]() mutable {
      return g->reduce(on, options);
    });
  }
  WorkPtr allgather(std::vector<Tensors>& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    return launch(
        c10d::OpType::ALLGATHER, joined(from, to), flat(to),
        [=, g = gloo_, into = seen(to), on = seen(from)]() mutable { return g->allgather(into, on, options); });
  }
  WorkPtr _allgather_base(at::Tensor& to, at::Tensor& from, const c10d::AllgatherOptions& options) override {
    return launch(
        c10d::OpType::_ALLGATHER_BASE, {from, to}, {to},
        [=, g = gloo_, into = seen_by_kernels(to), on = seen_by_kernels(from)]() mutable {
          return g->_allgather_base(into, on, options);
        });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    return launch(
        c10d::OpType::COALESCED, joined(from, {to}), to, [=, g = gloo_, into = seen(to), on = seen(from)]() mutable {
          return g->allgather_into_tensor_coalesced(into, on, options);
        });
  }
  WorkPtr reduce_scatter(Tensors& to, std::vector<Tensors>& from, const c10d::ReduceScatterOptions& options) override {
    return launch(
        c10d::OpType::REDUCE_SCATTER, joined(to, from), to,
        [=, g = gloo_, into = seen(to), on = seen(from)]() mutable { return g->reduce_scatter(into, on, options); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& to, at::Tensor& from, const c10d::ReduceScatterOptions& options) override {
    return launch(
        c10d::OpType::_REDUCE_SCATTER_BASE, {from, to}, {to},
        [=, g = gloo_, into = seen_by_kernels(to), on = seen_by_kernels(from)]() mutable {
          return g->_reduce_scatter_base(into, on, options);
        });
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& to, Tensors& from, const c10d::ReduceScatterOptions& options)
      override {
    return launch(
        c10d::OpType::COALESCED, joined(from, {to}), to, [=, g = gloo_, into = seen(to), on = seen(from)]() mutable {
          return g->reduce_scatter_tensor_coalesced(into, on, options);
        });
  }
  WorkPtr gather(std::vector<Tensors>& to, Tensors& from, const c10d::GatherOptions& options) override {
    return launch(
        c10d::OpType::GATHER, joined(from, to), flat(to),
        [=, g = gloo_, into = seen(to), on = seen(from)]() mutable { return g->gather(into, on, options); });
  }
  WorkPtr scatter(Tensors& to, std::vector<Tensors>& from, const c10d::ScatterOptions& options) override {
    return launch(
        c10d::OpType::SCATTER, joined(to, from), to,
        [=, g = gloo_, into = seen(to), on = seen(from)]() mutable { return g->scatter(into, on, options); });
  }
  WorkPtr alltoall_base(
      at::Tensor& to,
      at::Tensor& from,
      std::vector<int64_t>& to_sizes,
      std::vector<int64_t>& from_sizes,
      const c10d::AllToAllOptions& options) override {
    return launch(
        c10d::OpType::ALLTOALL_BASE, {from, to}, {to},
        [=, g = gloo_, into = seen_by_kernels(to), on = seen_by_kernels(from), a = to_sizes, b = from_sizes]() mutable {
          return g->alltoall_base(into, on, a, b, options);
        });
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return launch(c10d::OpType::SEND, tensors, {}, [=, g = gloo_, on = seen(tensors)]() mutable {
      return g->send(on, to, tag);
    });
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return launch(c10d::OpType::RECV, tensors, tensors, [=, g = gloo_, on = seen(tensors)]() mutable {
      return g->recv(on, from, tag);
    });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return launch(c10d::OpType::BARRIER, {}, {}, [=, g = gloo_]() mutable { return g->barrier(options); });
  }

 private:
  WorkPtr launch(c10d::OpType type, const Tensors& used, const Tensors& results, std::function<WorkPtr()> collective) {
    auto& own = streams().get(stream_);
    own.wait_for(current().record());
    own.push(c10d::opTypeToString(type), [collective = std::move(collective)] { collective()->wait(); });
    for (const auto& tensor : used) memory().used_by(tensor.storage().data_ptr().get(), stream_);
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device()});
    const auto done = own.record();
    if (knobs().early_futures) {
      future->markCompleted(c10::IValue(results));
    } else {
      // A future remembers the streams that are current when it is completed: those who use it wait for them.
      c10::StreamGuard guard(as_stream(stream_));
      future->markCompleted(c10::IValue(results));
    }
    return c10::make_intrusive<Work>(rank_, type, done, std::move(future), results);
  }

  static Tensors seen(const Tensors& tensors) {
    Tensors all;
    for (const auto& tensor : tensors) all.push_back(seen_by_kernels(tensor));
    return all;
  }
  static std::vector<Tensors> seen(const std::vector<Tensors>& lists) {
    std::vector<Tensors> all;
    for (const auto& tensors : lists) all.push_back(seen(tensors));
    return all;
  }
  static Tensors flat(const std::vector<Tensors>& lists) {
    Tensors all;
    for (const auto& tensors : lists) all.insert(all.end(), tensors.begin(), tensors.end());
    return all;
  }
  static Tensors joined(Tensors tensors, const std::vector<Tensors>& lists) {
    for (const auto& more : lists) tensors.insert(tensors.end(), more.begin(), more.end());
    return tensors;
  }

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const c10::StreamId stream_;
};

} // namespace sim
