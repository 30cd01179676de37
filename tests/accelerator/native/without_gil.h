// The interpreter's lock, given back for a while.
#pragma once

#include <Python.h>

namespace sim {

// Gives the lock back, if this thread has it. torch waits for some numbers with it (`add_(x, alpha=tensor)`), and a
// stream's thread may need it to let go of a tensor that Python knew. CUDA has no such threads.
class WithoutGil {
 public:
  WithoutGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace sim
