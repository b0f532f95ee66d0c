// Package netnstest puts hosts on one machine: each is a network namespace with a cable to one bridge, whose far end is the side
// of the clients. Real processes run on the hosts, and faults come between them: partitions, loss, delay, slow links, pulled
// cables. DESIGN.md says how.
//
// It works on Linux alone, needs iproute2 and nftables, and no root: Main runs the tests in namespaces of their own, so that two
// packages do not meet, nothing of the machine is touched, and all of it is gone with the process, however that ends.
package netnstest
