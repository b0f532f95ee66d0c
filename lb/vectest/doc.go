// Package vectest judges how a proxy treats HTTP messages that other proxies got wrong. It is
// for tests only.
//
// It has a client that sends a vector's octets as they are (over plain TCP or TLS, at once or
// octet by octet), a backend that records every octet it gets, and a judge that reads the
// record as six parsers would: a strict one and five that are lenient, each in its own way.
// What two of them understand differently is a desync, the fault that request smuggling lives on.
//
//	backend := vectest.NewBackend(t)
//	vectors, err := vectest.Load("testdata/vectors/A")
//	for _, v := range vectors {
//		vectest.Run(t, v, backend, vectest.Target{Address: proxy})
//	}
//
// A Campaign does the same with requests that nobody has written down: real ones and vectors with a few changes, many at a
// time, on connections that live on. Its backend names each request in the answer, so that the client sees at once when
// answers and requests are no longer in step.
//
// Nothing of lb/http1 is used here: a judge that shared its parser with the accused would
// share its mistakes.
package vectest
