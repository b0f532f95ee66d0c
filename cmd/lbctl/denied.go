package main

// denials are the reasons for which a node refuses who calls, with what the caller can do: exit 4. What the node says names the
// credential, what it may do, and what the call takes.
var denials = map[string]func(*reach) string{
	"NO_CREDENTIAL": func(*reach) string {
		return ": set LBCTL_TOKEN or LBCTL_TOKEN_FILE, or use a context that has one (`lbctl help connection`); an admin makes it with `lbctl token create`"
	},
	"BAD_CREDENTIAL":     func(r *reach) string { return r.origin() + ": ask an admin for another one (`lbctl token create`)" },
	"CREDENTIAL_EXPIRED": func(r *reach) string { return r.origin() + "; an admin makes it with `lbctl token create`" },
	"TOO_MANY_FAILURES":  (*reach).origin,
	"ROLE": func(r *reach) string {
		return r.origin() + ": ask an admin for a credential of that role (`lbctl token create`)"
	},
	"OWNER": func(r *reach) string {
		return r.origin() + ": ask an admin for a credential that is not bound to other owners (`lbctl token create`); `lbctl whoami` shows this one"
	},
}

// origin says where a credential that was refused comes from.
func (r *reach) origin() string {
	if r.from == "" {
		return ""
	}
	return " (the credential is from " + r.from + ")"
}
