package state

import (
	"slices"
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

// binding is what a cookie of a host binds its clients to, by the first of a change's routes that uses it.
type binding struct{ route, to string }

// checkBindings warns of a cookie by which two routes of the change bind the clients of one host to different things: a
// client has one cookie of a name, and each route would overwrite what the other one wrote.
func (c *checker) checkBindings(r *lbdv1.Route) {
	f := r.GetForward()
	var names []string
	for i, p := range f.GetPools() {
		names = append(names, p.GetPool())
		stored, _ := c.next.Get(Pools, p.GetPool())
		if session := stored.GetResource().GetPool().GetSessionPersistence(); session != nil {
			c.bind(r, session.GetCookie(), itemPath("forward.pools", i)+".pool", "pool `"+p.GetPool()+"`")
		}
	}
	if cookie := f.GetSplitPersistence().GetCookie(); cookie != "" {
		slices.Sort(names)
		c.bind(r, cookie, "forward.split_persistence.cookie", "pools `"+strings.Join(names, "`, `")+"`")
	}
}

// bind notes what a cookie binds to on the route's hosts, and warns where another route's binds to something else.
func (c *checker) bind(r *lbdv1.Route, cookie, field, to string) {
	hosts := r.GetHosts()
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	if c.bindings == nil {
		c.bindings = make(map[string]binding)
	}
	for _, host := range hosts {
		key := join(host, cookie)
		first, used := c.bindings[key]
		if !used {
			c.bindings[key] = binding{r.GetName(), to}
			continue
		}
		if first.route == r.GetName() || first.to == to {
			continue
		}
		at := "any host"
		if host != "" {
			at = "host `" + host + "`"
		}
		c.warnf(field, "cookie `%s` binds the clients of %s to %s, and by route `%s` to %s: each overwrites the other, give each its own",
			cookie, at, to, first.route, first.to)
		return
	}
}
