package state

import lbdv1 "lbd/proto/lbd/v1"

func checkPolicy(c *checker, p *lbdv1.Policy) {
	switch rule := p.GetRule().(type) {
	case *lbdv1.Policy_BodySize:
		if n := rule.BodySize.GetMaxBytes(); n < 1 || n > policyBodyBytesMax {
			c.errorf("body_size.max_bytes", "must be 1 to %d, not %d", int64(policyBodyBytesMax), n)
		}
	default:
		c.errorf("", "needs a rule: `body_size`")
	}
}
