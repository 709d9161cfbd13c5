// The transport: limits, keep-alive, pipelining, disconnects, timeouts.
#include "server/http/http_server.h"

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "server/http/error_body.h"
#include "server/http_client.h"
#include "server/server_fixture.h"

namespace nibble::server::http {
namespace {

std::unique_ptr<HttpServer> start(Handler handler, HttpConfig config = {}) {
  auto server = HttpServer::start(std::move(config), std::move(handler));
  EXPECT_TRUE(server) << (server ? "" : server.error().text());
  return std::move(*server);
}

void echo(const ExchangePtr& exchange) {
  const Request& request = exchange->request();
  exchange->respond({200,
                     "text/plain",
                     request.method + " " + request.path + "?" + request.query + " " + request.body,
                     {}});
}

TEST(HttpServer, AnswersRequestsOneAfterTheOtherOnOneConnection) {
  const auto server = start(echo);
  test::HttpClient client(server->port());
  for (int i = 0; i < 3; ++i) {
    const auto reply = client.request("POST", "/a%20b?x=1", "body" + std::to_string(i));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "POST /a b?x=1 body" + std::to_string(i));
    EXPECT_EQ(reply.header("Connection"), "keep-alive");
  }
  EXPECT_EQ(server->num_connections(), 1u);
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  const auto server = start(echo);
  test::HttpClient client(server->port());
  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.read_reply().body, "GET /1? ");
  EXPECT_EQ(client.read_reply().body, "GET /2? ");
}

TEST(HttpServer, EchoesAPrintableRequestIdAndReplacesOthers) {
  const auto server = start(echo);
  const auto reply = test::http(server->port(), "GET", "/", {}, "X-Request-Id: abc-1\r\n");
  EXPECT_EQ(reply.header("X-Request-Id"), "abc-1");
  const auto other = test::http(server->port(), "GET", "/", {}, "X-Request-Id: a b\r\n");
  EXPECT_EQ(other.header("X-Request-Id").size(), 32u);
}

TEST(HttpServer, ClosesWhenTheClientAsksForIt) {
  const auto server = start(echo);
  test::HttpClient client(server->port());
  EXPECT_EQ(client.request("GET", "/", {}, "Connection: close\r\n").header("Connection"), "close");
  EXPECT_TRUE(client.at_end());
}

TEST(HttpServer, HeadHasNoBody) {
  const auto server = start(echo);
  test::HttpClient client(server->port());
  const auto head = client.request("HEAD", "/x");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("Content-Length"), "9");
  EXPECT_EQ(client.request("GET", "/y").body, "GET /y? ");  // nothing of a body in between
}

TEST(HttpServer, RefusesALongBodyWithWordsAndStaysUp) {
  HttpConfig config;
  config.max_body_bytes = 1000;
  const auto server = start(echo, config);
  const auto reply = test::http(server->port(), "POST", "/", std::string(5'000'000, 'x'));
  EXPECT_EQ(reply.status, 413);
  EXPECT_NE(reply.body.find("longer than 1000 bytes"), std::string::npos);
  EXPECT_EQ(test::http(server->port(), "POST", "/", std::string(1000, 'x')).status, 200);
}

TEST(HttpServer, RefusesALongChunkedBody) {
  HttpConfig config;
  config.max_body_bytes = 1000;
  const auto server = start(echo, config);
  test::HttpClient client(server->port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) {
    client.send("64\r\n" + std::string(100, 'x') + "\r\n");
  }
  EXPECT_EQ(client.read_reply().status, 413);
}

TEST(HttpServer, RefusesBodiesBeyondWhatAllRequestsMayTakeTogether) {
  HttpConfig config;
  config.max_inflight_body_bytes = 1000;
  std::vector<ExchangePtr> kept;
  const auto server = start(
      [&](ExchangePtr exchange) {
        echo(exchange);
        if (exchange->request().path == "/keep") {
          kept.push_back(std::move(exchange));
        }
      },
      config);
  const auto status_of = [&](size_t bytes) {
    const auto reply = test::http(server->port(), "POST", "/", std::string(bytes, 'x'));
    if (reply.status == 503) {
      EXPECT_EQ(reply.json().at("message"),
                "the bodies of the requests in flight have reached their limit of 1000 bytes; try "
                "again later");
    }
    return reply.status;
  };
  EXPECT_EQ(status_of(1000), 200);
  EXPECT_EQ(status_of(1001), 503);
  test::HttpClient slow(
      server->port());  // what has arrived of a body counts, not what is announced
  slow.send("POST /keep HTTP/1.1\r\nHost: x\r\nContent-Length: 800\r\n\r\n" +
            std::string(700, 'y'));
  ASSERT_TRUE(test::eventually([&] { return status_of(301) == 503; }));
  EXPECT_EQ(status_of(300), 200);
  slow.send(std::string(100, 'y'));
  EXPECT_EQ(slow.read_reply().status, 200);
  EXPECT_EQ(status_of(201), 503);  // the handler still has the body
  kept.at(0)->request().drop_body();
  EXPECT_EQ(status_of(1000), 200);
  test::HttpClient gone(server->port());  // a client that leaves gives its part back
  gone.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n" + std::string(800, 'z'));
  ASSERT_TRUE(test::eventually([&] { return status_of(201) == 503; }));
  gone.close();
  EXPECT_TRUE(test::eventually([&] { return status_of(1000) == 200; }));
}

TEST(HttpServer, RefusesALongHeader) {
  HttpConfig config;
  config.max_header_bytes = 2000;
  const auto server = start(echo, config);
  const auto reply =
      test::http(server->port(), "GET", "/", {}, "X: " + std::string(100'000, 'x') + "\r\n");
  EXPECT_EQ(reply.status, 431);
  EXPECT_EQ(test::http(server->port(), "GET", "/").status, 200);
}

TEST(HttpServer, RefusesWhatIsNotHttp) {
  const auto server = start(echo);
  for (const char* text : {"hello\r\n\r\n",
                           "GET / HTTP/9.9\r\n\r\n",
                           "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
                           "\x16\x03\x01\x02\r\n\r\n"}) {
    test::HttpClient client(server->port());
    client.send(text);
    EXPECT_EQ(client.read_reply().status, 400) << text;
  }
  EXPECT_EQ(test::http(server->port(), "GET", "/").status, 200);
}

TEST(HttpServer, AcceptsTargetsThatNameTheServer) {
  const auto server = start(echo);
  const auto body_of = [&](const char* target) {
    return test::http(server->port(), "GET", target).body;
  };
  EXPECT_EQ(body_of("http://host:30000/a/b?q=1"), "GET /a/b?q=1 ");
  EXPECT_EQ(body_of("HTTPS://[::1]/a%20b"), "GET /a b? ");
  EXPECT_EQ(body_of("http://host"), "GET /? ");
  EXPECT_EQ(body_of("http://host?q=/x"), "GET /?q=/x ");
  EXPECT_EQ(body_of("/http://host/a"), "GET /http://host/a? ");  // a path like any other
  EXPECT_EQ(body_of("ftp://host/a"), "GET ftp://host/a? ");
}

TEST(HttpServer, WantsOneHostOfARequestOfHttp11) {
  const auto server = start(echo);
  const auto status_of = [&](const char* text) {
    test::HttpClient client(server->port());
    client.send(text);
    return client.read_reply().status;
  };
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET http://a/ HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost:\r\n\r\n"), 200);  // where a target names none
  EXPECT_EQ(status_of("GET / HTTP/1.0\r\n\r\n"), 200);
}

TEST(HttpServer, RefusesABodyWithoutAnEndAndReadsNoRequestOutOfIt) {
  const auto server = start(echo);
  for (const char* coding : {"identity", "gzip", "chunked, gzip"}) {
    test::HttpClient client(server->port());
    client.send("POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " + std::string(coding) +
                "\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(client.read_reply().status, 400) << coding;
    EXPECT_TRUE(client.at_end()) << coding;
  }
  test::HttpClient client(server->port());
  client.send(
      "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_reply().body, "POST /a? hi");
}

TEST(HttpServer, SendsContinueWhenAsked) {
  const auto server = start(echo);
  test::HttpClient shouting(server->port());
  shouting.send("POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-Continue\r\n\r\n");
  EXPECT_EQ(shouting.read_reply().status, 100);
  test::HttpClient client(server->port());
  client.send("POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 100);
  client.send("abc");
  EXPECT_EQ(client.read_reply().body, "POST /c? abc");
}

TEST(HttpServer, ClosesConnectionsThatSendNothing) {
  HttpConfig config;
  config.idle_timeout_seconds = 0.1;
  config.read_timeout_seconds = 0.1;
  const auto server = start(echo, config);
  test::HttpClient silent(server->port());
  EXPECT_TRUE(silent.at_end());
  test::HttpClient slow(server->port());
  slow.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_TRUE(slow.at_end());
  EXPECT_TRUE(test::eventually([&] { return server->num_connections() == 0; }));
}

TEST(HttpServer, TellsOfADisconnectWhileTheHandlerWorks) {
  ExchangePtr kept;
  std::atomic<bool> gone{false};
  std::atomic<bool> arrived{false};
  const auto server = start([&](const ExchangePtr& exchange) {
    exchange->on_disconnect([&] { gone = true; });
    kept = exchange;
    arrived = true;
  });
  {
    test::HttpClient client(server->port());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    ASSERT_TRUE(test::eventually([&] { return arrived.load(); }));
    EXPECT_FALSE(gone);
  }
  EXPECT_TRUE(test::eventually([&] { return gone.load(); }));
  EXPECT_TRUE(kept->disconnected());
  kept->respond({200, "text/plain", "too late", {}});  // harmless
  EXPECT_TRUE(test::eventually([&] { return server->num_connections() == 0; }));
}

TEST(HttpServer, StreamsInChunksAndKeepsTheConnection) {
  const auto server = start([](const ExchangePtr& exchange) {
    exchange->start_stream("text/event-stream");
    exchange->write("data: 1\n\n");
    exchange->write("data: 2\n\n");
    exchange->finish();
    exchange->write("data: after the end\n\n");
  });
  test::HttpClient client(server->port());
  for (int i = 0; i < 2; ++i) {
    const auto reply = client.request("GET", "/");
    EXPECT_EQ(reply.header("Transfer-Encoding"), "chunked");
    EXPECT_EQ(reply.events(), (std::vector<std::string>{"1", "2"}));
  }
}

TEST(HttpServer, AnswersWhenTheHandlerForgets) {
  const auto server = start([](const ExchangePtr&) {});
  EXPECT_EQ(test::http(server->port(), "GET", "/").status, 500);
}

TEST(HttpServer, RefusesABusyPortAndABadAddress) {
  const auto server = start(echo);
  HttpConfig config;
  config.port = server->port();
  const auto busy = HttpServer::start(config, echo);
  ASSERT_FALSE(busy);
  EXPECT_NE(busy.error().text().find("cannot listen on 127.0.0.1"), std::string::npos);
  config.host = "nowhere";
  EXPECT_FALSE(HttpServer::start(config, echo));
}

TEST(HttpServer, DrainsWhatRunsAndRefusesNewConnections) {
  ExchangePtr kept;
  std::atomic<bool> arrived{false};
  const auto server = start([&](const ExchangePtr& exchange) {
    kept = exchange;
    arrived = true;
  });
  test::HttpClient idle(server->port());
  test::HttpClient client(server->port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(test::eventually([&] { return arrived.load(); }));
  EXPECT_FALSE(server->drain(0.05));
  EXPECT_TRUE(idle.at_end());
  kept->respond({200, "text/plain", "done", {}});
  const auto reply = client.read_reply();
  EXPECT_EQ(reply.body, "done");
  EXPECT_EQ(reply.header("Connection"), "close");
  EXPECT_TRUE(server->drain(5));
  EXPECT_EQ(test::http(server->port(), "GET", "/").status, 0);
}

TEST(ErrorBody, BlamesTheClientForEvery4xxAndTheServerForEvery5xx) {
  for (int status = 400; status < 600; ++status) {
    const auto body = boost::json::parse(error_body(status, "words", "", ErrorShape::Flat));
    EXPECT_EQ(body.at("code"), status);
    EXPECT_EQ(body.at("type") == "internal_server_error",
              status >= 500 && status != 501 && status != 503)
        << status;
  }
  for (const int status : {402, 403, 408, 409, 415, 422, 429}) {
    EXPECT_EQ(boost::json::parse(error_body(status, "", "", ErrorShape::Both)).at("type"),
              "invalid_request_error")
        << status;
  }
}

TEST(Request, FindsHeadersAndQueryValues) {
  Request request;
  request.headers = {{"Content-Type", "a"}};
  request.query = "x=1&long+name=a%26b&empty=&flag";
  EXPECT_EQ(request.header("content-TYPE"), "a");
  EXPECT_EQ(request.header("other"), "");
  EXPECT_EQ(request.query_value("x"), "1");
  EXPECT_EQ(request.query_value("long name"), "a&b");
  EXPECT_EQ(request.query_value("empty"), "");
  EXPECT_EQ(request.query_value("flag"), "");
  EXPECT_FALSE(request.query_value("y"));
  EXPECT_EQ(percent_decode("%zz%4", false), "%zz%4");
}

}  // namespace
}  // namespace nibble::server::http
