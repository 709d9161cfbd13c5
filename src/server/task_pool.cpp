#include "server/task_pool.h"

#include <chrono>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

namespace nibble::server {

namespace asio = boost::asio;

namespace {

class Pool : public asio::thread_pool {
 public:
  using asio::thread_pool::thread_pool;
  // Destroys the tasks that wait. They hold queues and those hold the pool: left to its destructor,
  // they would keep each other alive.
  void drop_tasks() { shutdown(); }
};

}  // namespace

struct TaskPool::Impl {
  Pool pool;
  explicit Impl(int num_threads) : pool(static_cast<size_t>(num_threads)) {}
};

struct TaskPool::Queue::Impl {
  std::shared_ptr<TaskPool::Impl> pool;  // outlives the strand
  asio::strand<asio::thread_pool::executor_type> strand;
  explicit Impl(std::shared_ptr<TaskPool::Impl> owner)
      : pool(std::move(owner)), strand(asio::make_strand(pool->pool)) {}
};

TaskPool::TaskPool(int num_threads) : impl_(std::make_shared<Impl>(num_threads)) {}

TaskPool::~TaskPool() {
  impl_->pool.stop();
  impl_->pool.join();
  impl_->pool.drop_tasks();
}

TaskPool::Queue TaskPool::make_queue() {
  Queue queue;
  queue.impl_ = std::make_shared<Queue::Impl>(impl_);
  return queue;
}

void TaskPool::Queue::post(Task task) { asio::post(impl_->strand, std::move(task)); }

void TaskPool::Queue::post_after(double seconds, Task task) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->strand);
  timer->expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds)));
  timer->async_wait([timer, task = std::move(task)](const boost::system::error_code& code) {
    if (!code) {
      task();
    }
  });
}

}  // namespace nibble::server
