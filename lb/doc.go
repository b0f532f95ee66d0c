// Package lb is the data plane of one node: listeners, client connections, the routing table, pools and forwarding.
//
// A connection is served by straight-line code in a task of package loop; serveRequest is the whole of a request on one
// screen. What is served (the Table, who is eligible in a Pool, a listener's form) are immutable values behind atomic
// pointers that one goroutine, the publisher, replaces. DESIGN.md has the reasons.
package lb
