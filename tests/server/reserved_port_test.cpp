#include "server/http/reserved_port.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "http_client.h"
#include "server/http/http_server.h"

namespace nibble::server::http {
namespace {

Result<std::unique_ptr<HttpServer>> serve_on(ReservedPort port) {
  return HttpServer::start(
      {},
      [](const ExchangePtr& exchange) { exchange->respond({200, "text/plain", "here", {}}); },
      std::move(port));
}

TEST(ReservedPort, IsServedOnLater) {
  auto port = ReservedPort::bind("127.0.0.1", 0);
  ASSERT_TRUE(port);
  const uint16_t number = port->port();
  EXPECT_NE(number, 0);
  const auto server = serve_on(std::move(*port));
  ASSERT_TRUE(server);
  EXPECT_EQ((*server)->port(), number);
  EXPECT_EQ(test::http(number, "GET", "/").body, "here");
}

TEST(ReservedPort, TakesANameOfThisMachine) {
  const auto port = ReservedPort::bind("localhost", 0);
  ASSERT_TRUE(port);
  EXPECT_FALSE(port->is_v6());
}

TEST(ReservedPort, KnowsHowUrlsWriteAddresses) {
  EXPECT_EQ(url_host("::1"), "[::1]");
  EXPECT_EQ(url_host("[::1]"), "[::1]");
  EXPECT_EQ(url_host("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(url_host("localhost"), "localhost");
  EXPECT_FALSE(ReservedPort::bind("[]", 0));
  EXPECT_FALSE(ReservedPort::bind("[127.0.0.1", 0));
  const auto foreign = ReservedPort::bind("2001:db8::1", 0);  // of nobody (RFC 3849)
  ASSERT_FALSE(foreign);
  EXPECT_NE(foreign.error().text().find("cannot listen on [2001:db8::1]:0"), std::string::npos);
  if (ReservedPort::bind("::1", 0)) {  // not on machines without IPv6
    EXPECT_TRUE(ReservedPort::bind("[::1]", 0)->is_v6());
  }
}

TEST(ReservedPort, RefusesWhatIsNoAddressAndWhatIsTaken) {
  const auto unknown = ReservedPort::bind("no.such.name.invalid", 0);
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().text().find("no.such.name.invalid"), std::string::npos);
  const auto foreign = ReservedPort::bind("192.0.2.1", 0);  // of nobody (RFC 5737)
  ASSERT_FALSE(foreign);
  EXPECT_NE(foreign.error().text().find("cannot listen on 192.0.2.1"), std::string::npos);
  auto first = ReservedPort::bind("127.0.0.1", 0);
  const uint16_t number = first->port();
  const auto server = serve_on(std::move(*first));
  EXPECT_FALSE(ReservedPort::bind("127.0.0.1", number));
}

TEST(ReservedPort, OfTwoThatStartTogetherTheLaterIsRefused) {
  auto first = ReservedPort::bind("127.0.0.1", 0);
  auto second = ReservedPort::bind("127.0.0.1", first->port());
  ASSERT_TRUE(second);  // nobody listens yet: Linux lets both bind
  const auto server = serve_on(std::move(*first));
  ASSERT_TRUE(server);
  const auto late = serve_on(std::move(*second));
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().text().find("cannot listen"), std::string::npos);
}

TEST(ReservedPort, GivesThePortBack) {
  uint16_t number = 0;
  {
    auto port = ReservedPort::bind("127.0.0.1", 0);
    number = port->port();
  }
  EXPECT_TRUE(ReservedPort::bind("127.0.0.1", number));
}

}  // namespace
}  // namespace nibble::server::http
