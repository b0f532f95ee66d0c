package state

import (
	"slices"
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

func (c *checker) checkRetry(r *lbdv1.Retry) {
	const base = "forward.retry."
	if n := r.GetAttempts(); n < 0 || n > retriesMax {
		c.errorf(base+"attempts", "must be 0 to %d, not %d", retriesMax, n)
	}
	seen := make(map[lbdv1.RetryCause]bool)
	for i, cause := range r.GetOn() {
		path := itemPath(base+"on", i)
		switch _, known := lbdv1.RetryCause_name[int32(cause)]; {
		case !known || cause == lbdv1.RetryCause_RETRY_CAUSE_UNSPECIFIED:
			c.errorf(path, "unknown cause %d (CONNECT_FAILURE, RESET_BEFORE_RESPONSE, FIRST_BYTE_TIMEOUT, STATUS_5XX)", cause)
		case seen[cause]:
			c.errorf(path, "`%s` is there twice", strings.TrimPrefix(cause.String(), "RETRY_CAUSE_"))
		}
		seen[cause] = true
	}
	c.checkWait(base+"per_try_timeout", r.GetPerTryTimeout())
	if r.GetPerTryTimeout() != nil && !slices.Contains(r.GetOn(), lbdv1.RetryCause_RETRY_CAUSE_FIRST_BYTE_TIMEOUT) {
		c.errorf(base+"per_try_timeout", "needs FIRST_BYTE_TIMEOUT in `on`: a try that it ends would not be repeated")
	}
	c.checkRange(base+"budget_percent", int64(r.GetBudgetPercent()), 1, 100)
}
