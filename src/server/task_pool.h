// Threads for the server's text work: tokenizing, templates, rendering answers. Tasks may not throw
// and may not block for long. A Queue runs its tasks one after the other, in order; different
// queues run side by side.
#pragma once

#include <functional>
#include <memory>

namespace nibble::server {

class TaskPool {
 public:
  using Task = std::function<void()>;

  class Queue {
   public:
    void post(Task task);
    void post_after(double seconds, Task task);

   private:
    friend class TaskPool;
    struct Impl;
    std::shared_ptr<Impl> impl_;  // copies are the same queue
  };

  explicit TaskPool(int num_threads);
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;
  ~TaskPool();  // drops what has not begun, joins

  Queue make_queue();

 private:
  struct Impl;
  std::shared_ptr<Impl>
      impl_;  // shared with the queues: a late post to one is dropped, not a crash
};

}  // namespace nibble::server
