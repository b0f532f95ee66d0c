package loop

// heavyQueue holds the tasks whose next step is expensive. As long as all of
// them come to their turn soon, they come first come first served. Once the
// oldest has waited for too long, more arrive than can be served: then the newest
// is the one whose client is still there, and goes first; the oldest may be
// given up.
type heavyQueue struct {
	oldest, newest *pollTask
	n              int
}

func (q *heavyQueue) len() int { return q.n }

func (q *heavyQueue) push(t *pollTask, now instant) {
	t.older, t.newer, t.heavySince = q.newest, nil, now
	if q.newest != nil {
		q.newest.newer = t
	} else {
		q.oldest = t
	}
	q.newest = t
	q.n++
}

func (q *heavyQueue) remove(t *pollTask) {
	if t.older != nil {
		t.older.newer = t.newer
	} else {
		q.oldest = t.newer
	}
	if t.newer != nil {
		t.newer.older = t.older
	} else {
		q.newest = t.older
	}
	t.older, t.newer = nil, nil
	q.n--
}

// pop takes out the task whose turn it is.
func (q *heavyQueue) pop(now, patience instant) *pollTask {
	if now-q.oldest.heavySince < patience {
		return q.popOldest()
	}
	t := q.newest
	q.remove(t)
	return t
}

func (q *heavyQueue) popOldest() *pollTask {
	t := q.oldest
	q.remove(t)
	return t
}
