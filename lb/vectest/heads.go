package vectest

import "strings"

// realRequests are what clients in use send, whole, each with the name of one that does. All must be forwarded.
var realRequests = []struct{ client, octets string }{
	{"Chrome", crlf(`GET /shop/item?id=17&ref=%2Fhome HTTP/1.1
Host: v.test
Connection: keep-alive
sec-ch-ua: "Chromium";v="131", "Not_A Brand";v="24"
sec-ch-ua-mobile: ?0
sec-ch-ua-platform: "Linux"
Upgrade-Insecure-Requests: 1
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8
Sec-Fetch-Site: none
Sec-Fetch-Mode: navigate
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: de-DE,de;q=0.9,en;q=0.8
Cookie: sid=0f9e8d7c; theme=dark

`)},
	{"Chrome's POST", crlf(`POST /api/cart HTTP/1.1
Host: v.test
Connection: keep-alive
Content-Length: 27
Content-Type: application/json
Origin: https://v.test
Referer: https://v.test/shop

{"item":17,"count":2,"a":1}`)},
	{"Firefox", crlf(`GET /style.css HTTP/1.1
Host: v.test
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:133.0) Gecko/20100101 Firefox/133.0
Accept: text/css,*/*;q=0.1
Accept-Language: en-US,en;q=0.5
Accept-Encoding: gzip, deflate, br
Connection: keep-alive
If-None-Match: "5e-61a"
Priority: u=2

`)},
	{"a browser's form", crlf(`POST /upload HTTP/1.1
Host: v.test
Content-Type: multipart/form-data; boundary=----b1
Content-Length: 89

------b1
Content-Disposition: form-data; name="f"; filename="a.txt"

abc
------b1--
`)},
	{"a browser's preflight", crlf(`OPTIONS /api/cart HTTP/1.1
Host: v.test
Access-Control-Request-Method: PUT
Access-Control-Request-Headers: content-type
Origin: https://other.test

`)},
	{"a browser's WebSocket", crlf(`GET /live HTTP/1.1
Host: v.test
Connection: Upgrade
Upgrade: websocket
Origin: https://v.test
Sec-WebSocket-Version: 13
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==

`)},
	{"a browser's EventSource", crlf(`GET /events HTTP/1.1
Host: v.test
Accept: text/event-stream
Cache-Control: no-cache
Last-Event-ID: 41

`)},
	{"gRPC-web", crlf("POST /pkg.Service/Method HTTP/1.1\nHost: v.test\nContent-Type: application/grpc-web+proto\nX-Grpc-Web: 1\n"+
		"Grpc-Timeout: 5S\nContent-Length: 7\n\n") + "\x00\x00\x00\x00\x02\x08\x01"},
	{"curl", crlf("GET /v HTTP/1.1\nHost: v.test\nUser-Agent: curl/8.14.1\nAccept: */*\n\n")},
	{"curl -d", crlf("POST /v HTTP/1.1\nHost: v.test\nUser-Agent: curl/8.14.1\nAccept: */*\nContent-Length: 5\n" +
		"Content-Type: application/x-www-form-urlencoded\n\na=b&c")},
	{"curl -T - with Expect", crlf("PUT /v HTTP/1.1\nHost: v.test\nUser-Agent: curl/8.14.1\nTransfer-Encoding: chunked\n" +
		"Expect: 100-continue\n\n5\nhello\n6\n world\n0\n\n")},
	{"curl -I", crlf("HEAD /v HTTP/1.1\nHost: v.test\nUser-Agent: curl/8.14.1\nAccept: */*\n\n")},
	{"curl --http2", crlf("GET /v HTTP/1.1\nHost: v.test\nConnection: Upgrade, HTTP2-Settings\nUpgrade: h2c\n" +
		"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\n\n")},
	{"Go", crlf("GET /v?q=a+b HTTP/1.1\nHost: v.test\nUser-Agent: Go-http-client/1.1\nAccept-Encoding: gzip\n\n")},
	{"Go, trailers", crlf("POST /v HTTP/1.1\nHost: v.test\nUser-Agent: Go-http-client/1.1\nTransfer-Encoding: chunked\n" +
		"Trailer: Digest\nTE: trailers\nConnection: TE\n\n3\nabc\n0\nDigest: sha-256=x\n\n")},
	{"Python requests", crlf("POST /v HTTP/1.1\nHost: v.test\nUser-Agent: python-requests/2.32.3\nAccept-Encoding: gzip, deflate\n" +
		"Accept: */*\nConnection: keep-alive\nContent-Length: 8\nContent-Type: application/json\n\n{\"a\": 1}")},
	{"aiohttp", crlf("DELETE /v/7 HTTP/1.1\nHost: v.test:8080\nAccept: */*\nAccept-Encoding: gzip, deflate\n" +
		"User-Agent: Python/3.13 aiohttp/3.11\n\n")},
	{"Node's fetch", crlf("PATCH /v HTTP/1.1\nhost: v.test\nconnection: keep-alive\ncontent-type: text/plain;charset=UTF-8\n" +
		"accept: */*\naccept-language: *\nsec-fetch-mode: cors\nuser-agent: node\naccept-encoding: gzip, deflate\ncontent-length: 2\n\nok")},
	{"LWP", crlf("GET /v HTTP/1.1\nTE: deflate,gzip;q=0.3\nConnection: TE\nHost: v.test\nUser-Agent: libwww-perl/6.77\n\n")},
	{"a client with a proxy", crlf("GET http://v.test/v?x HTTP/1.1\nHost: v.test\nProxy-Connection: Keep-Alive\n\n")},
	{"ab -k", crlf("GET /v HTTP/1.0\nConnection: Keep-Alive\nHost: v.test\nUser-Agent: ApacheBench/2.3\nAccept: */*\n\n")},
	{"a proxy before us", crlf("GET /v HTTP/1.1\nHost: v.test\nX-Forwarded-For: 192.0.2.7\nX-Forwarded-Proto: https\nVia: 2 edge\n" +
		"Forwarded: for=192.0.2.7;proto=https\nX-Request-Id: 7f3a\nTraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n\n")},
}

// crlf writes line ends as they are sent.
func crlf(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }
